// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// `row_statistics` with entropies in float32, for `fast`: one read of the matrix gives the column
// sums over the visible entries, in float64 and with the bits of the exact ones, to scratch.sums
// [keys] and −Σ_j x log x of every row (NaN where it holds a negative entry), relative error below
// 2e-6 of Σ |x log x|, to `entropy` [queries]. Several rows are read side by side where rows are
// contiguous; masks and float64 matrices go another way, and entropies of float64 and of rows
// shorter than a vector are exact. With
// `find_support` the same read finds out whether the map is causal and writes that to `support`.
// Returns whether all entries are finite; where not, what was written means nothing.
template <class Scalar>
bool fast_row_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                         double* entropy, RowScratch& scratch);

// The entropies alone, without the sums and with the same bits.
template <class Scalar>
bool fast_entropies(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                    double* entropy, RowScratch& scratch);

}  // namespace attnscope
