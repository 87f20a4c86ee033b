// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Column sums over the visible entries to scratch.sums [keys] and, unless `entropy` is null, −Σ_j x
// log x of every row to `entropy` [queries] (NaN where a row holds a negative entry), in one read
// of the matrix. With `find_support` the same read finds out whether the map is causal and writes
// that to `support`; otherwise `support` is taken as it is. Returns whether all entries are finite;
// where not, what was written means nothing.
template <class Scalar>
bool row_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                    double* entropy, RowScratch& scratch);

// Whether a matrix that is read twice stays in the second-level cache in between.
template <class Scalar>
bool stays_in_cache(const MatrixView<Scalar>& matrix) {
  return matrix.size() * static_cast<Index>(sizeof(Scalar)) <= Index{1} << 19;
}

// Of less, an entropy in float32 can be of subnormal numbers, so that float64 gives it.
inline constexpr double kSmallestFast = 1e-30;

// The entropies alone, under a support that is known. Of a row that is not finite they are not
// either. With `fast` in float32: relative error below 2e-6 of Σ |x log x|; those of float64
// matrices are in float64. `zeros_behind`: what lies behind a row's keys is known to be 0.
template <class Scalar>
void row_entropies(const MatrixView<Scalar>& attention, const Support& support, bool zeros_behind,
                   bool fast, double* entropy, RowScratch& scratch);

}  // namespace attnscope
