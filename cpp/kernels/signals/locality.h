// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Attention to keys at most `window` away over attention to all others,
// Σ_{|i−j| <= w} A_ij / Σ_{|i−j| > w} A_ij over visible pairs. Range [0, ∞]: infinity where nothing
// goes farther, NaN where nothing goes anywhere. `drop_first` leaves out key 0. One read of the
// visible part, after one of what is hidden with `find_support`, which finds out whether the map is
// causal; otherwise `support` is taken as it is. Returns whether all entries are finite; where not,
// `ratio` stays as it is. `fast`: in one read with a relative error below 2e-6 where
// fast_near_and_far reads the map.
template <class Scalar>
bool local_global_ratio(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                        Index window, bool drop_first, double& ratio, RowScratch& scratch,
                        bool fast = false);

// Sums of the entries of heads near and far from their queries, of one head after another.
struct NearAndFarSums {
  double* near;  // [heads]
  double* far;   // [heads]
};

// The same sums of heads that lie side by side, over all their entries: what no query of a causal
// map sees is 0. `layer`: [queries, keys·heads], entry j·heads + h being key j of head h, rows
// contiguous, heads at least a vector of float64 numbers; query 0 stands at key `place`. A sum is
// not finite where an entry of its head is not. One read of the layer along its memory.
template <class Scalar>
void near_and_far_sums(const MatrixView<Scalar>& layer, Index heads, Index place, Index window,
                       const NearAndFarSums& out);

// Whether `near_and_far_sums` takes so many heads.
bool are_summed_together(Index heads);

}  // namespace attnscope
