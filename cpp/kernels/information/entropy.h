// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Shannon entropy of every query's row over its visible keys, −Σ_j A_ij log A_ij in nats, 0·log 0 =
// 0, to `out` [queries]; `normalized` divides by the log of the number of visible keys, and a query
// that sees fewer than two keys is NaN. Rows that sum to 1: range [0, log n], normalized [0, 1]. A
// negative entry makes its row NaN. n = 1: {0}. One read of the matrix, which with `find_support`
// also finds out the support; otherwise `support` is taken as it is. Returns whether all entries
// are finite; where not, `out` is NaN. With `fast` entropies of maps in float32 and half types are
// in float32, with a relative error below 2e-6 of Σ_j |A_ij log A_ij|. Shannon 1948.
template <class Scalar>
bool attention_entropy(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                       bool normalized, double* out, RowScratch& scratch, bool fast = false);

// What `normalized` does to the entropies of a map of n keys.
void normalize_entropies(const Support& support, Index queries, Index n, double* entropies);

}  // namespace attnscope
