// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Sums of the visible entries of a map that are at most a window away from their query, and of all
// others.
struct NearAndFarSum {
  double near = 0.0;
  double far = 0.0;
};

// Both in float32, for `fast`, in one read of a matrix that has contiguous rows: relative error of
// each below 1e-6. With `find_support` the same read finds out whether the map is causal and writes
// that to `support`. False, and nothing is known, for what is not read so: float64, rows shorter
// than a vector, masks, queries at places of their own, an entry that has a sign or is not finite,
// one that a given causal support hides.
template <class Scalar>
bool fast_near_and_far(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                       Index window, NearAndFarSum& sums);

}  // namespace attnscope
