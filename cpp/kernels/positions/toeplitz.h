// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"
#include "simd/memory.h"

namespace attnscope {

// Scores s_ij of query i and key j <= i: the argument of the softmax, -infinity where the key is
// invisible. Entries above the diagonal play no part. D = i − j is the offset of a pair. Both
// functions read the matrix once, the split those rows twice that give the profile of a matrix with
// invisible keys, and return whether every entry at j <= i, in the rows that they take, is a number
// or -infinity; where not, the results are NaN.

struct ToeplitzWorkspace {
  RowScratch rows;
  RowScratch held;        // rows that are looked at together
  AlignedBuffer offsets;  // sums and counts by offset
};

// What becomes of the split, each where the first m rows and columns of the caller's arrays stand.
struct ToeplitzOutputs {
  double* profile;   // [m]
  double* residual;  // [m, m], `ld` apart
  double* row;       // [m]
  double* variance;  // [m]
  double* first;     // [m]
  double* lse;       // [m]
  Index ld;
};

// The matrix and the residual of the call that follows.
struct ToeplitzAhead {
  Ahead scores, residual;
};

// Rows that the split describes: the first half of n, or all.
inline Index split_rows(Index n, bool late) { return late ? n / 2 : n; }

// Splits scores into a profile T_D of the offset and a residual R_ij = s_ij − T_{i−j} of the first
// m queries. `late`: m = n/2 rounded down and T_D is the mean over the queries m to 2m − 1;
// otherwise m = n and T_D is the mean over all queries. T_D is NaN where no query sees that offset;
// R is NaN above the diagonal, where the key is invisible and where T is NaN. Over the body keys j
// = 1 … i that have a residual, weights w (`weights` [m, m] rows `weight_ld` apart, or null for
// equal ones) divided by their sum: row = Σ w R, variance = Σ w (R − row)², NaN for fewer than two
// keys of positive weight; first = R_i0 − the mean of R over the body; lse = log Σ_{j<=i} exp s_ij,
// NaN for a query that sees no key. n²/8 exponentials.
template <class Scalar>
bool toeplitz_split(const MatrixView<Scalar>& scores, bool late, const double* weights,
                    Index weight_ld, const ToeplitzOutputs& out, ToeplitzWorkspace& workspace,
                    ToeplitzAhead ahead = {});

// Mean, population variance and number of the entries at every offset D = 0 … n − 1 that are not
// -infinity; NaN where there is none. Welford 1962.
template <class Scalar>
bool offset_variance(const MatrixView<Scalar>& values, double* mean, double* variance,
                     std::int64_t* count, ToeplitzWorkspace& workspace);

}  // namespace attnscope
