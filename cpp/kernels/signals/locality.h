// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Attention to keys at most `window` away over attention to all others,
// Σ_{|i−j| <= w} A_ij / Σ_{|i−j| > w} A_ij over visible pairs. Range [0, ∞]: infinity where nothing
// goes farther, NaN where nothing goes anywhere. `drop_first` leaves out key 0. One read of the
// visible part, after one of what is hidden with `find_support`, which finds out whether the map is
// causal; otherwise `support` is taken as it is. Returns whether all entries are finite; where not,
// `ratio` stays as it is.
template <class Scalar>
bool local_global_ratio(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                        Index window, bool drop_first, double& ratio, RowScratch& scratch);

}  // namespace attnscope
