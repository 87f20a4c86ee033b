// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Whether `sum_columns` reads a matrix: its rows are contiguous and at least a vector long.
template <class Scalar>
bool has_summable_columns(const MatrixView<Scalar>& rows);

// The sums of the columns of such a matrix to sums [columns], each adding its rows in order, in one
// read along the memory. `heads` entries belong to each key: those of heads that lie side by side,
// or 1 in a map of its own. With `find_causal`, returns whether every entry is 0 that no query of a
// causal map sees, where query i sees the keys up to i + shift, in the maps of all heads; otherwise
// false. The sums are those of all entries either way.
template <class Scalar>
bool sum_columns(const MatrixView<Scalar>& rows, Index heads, Index shift, bool find_causal,
                 double* sums);

// Whether all of `count` sums, `stride` apart, are finite.
bool are_finite(const double* sums, Index count, Index stride);

}  // namespace attnscope
