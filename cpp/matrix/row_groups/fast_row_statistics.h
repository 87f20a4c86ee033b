// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// The largest relative error of a column's sum in float32, of entries that have no sign.
inline constexpr double kErrorOfFastSums = 1e-6;

// `row_statistics` in float32, for `fast`: one read of the matrix gives the column sums over the
// visible entries, relative error below kErrorOfFastSums, to scratch.sums [keys] and −Σ_j x log x
// of every row (NaN where it holds a negative entry), relative error below 2e-6 of Σ |x log x|, to
// `entropy` [queries] unless that is null. Several rows are read side by side where rows are
// contiguous; sums of masks, of float64 matrices, of other strides and of maps with a negative
// entry are exact, and so are entropies of float64 and of rows shorter than a vector. With
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
