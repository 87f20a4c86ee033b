// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Attention to keys at most `window` away over attention to all others,
// Σ_{|i−j| <= w} A_ij / Σ_{|i−j| > w} A_ij over visible pairs. Range [0, ∞]: infinity where nothing
// goes farther, NaN where nothing goes anywhere. `drop_first` leaves out key 0. One read of the
// visible part.
template <class Scalar>
double local_global_ratio(const MatrixView<Scalar>& attention, const Support& support, Index window,
                          bool drop_first, RowScratch& scratch);

}  // namespace attnscope
