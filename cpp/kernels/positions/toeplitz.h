// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"
#include "matrix/row_scratch.h"
#include "simd/aligned_buffer.h"

namespace attnscope {

// Scores s_ij of query i and key j <= i: the argument of the softmax, -infinity where the key is invisible.
// Entries above the diagonal play no part. D = i − j is the offset of a pair. All three functions read the
// matrix once and return whether every entry at j <= i, in the rows that they take, is a number or -infinity;
// where not, the results are NaN.

struct ToeplitzWorkspace {
  RowScratch rows;
  AlignedBuffer offsets;    // sums and counts by offset
  AlignedBuffer row;        // one early row: scores, residuals, weights
  AlignedBuffer lanes;      // late rows side by side: scores, then shares of the newest key and of the older ones
  AlignedBuffer sums;       // over late rows, by offset
  AlignedBuffer sticks;     // attention of each late row, by offset
  AlignedBuffer attention;  // its sum over late rows, by query and offset
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

// Rows that the split describes: the first half of n, or all.
inline Index split_rows(Index n, bool late) { return late ? n / 2 : n; }

// Splits scores into a profile T_D of the offset and a residual R_ij = s_ij − T_{i−j} of the first m queries.
// `late`: m = n/2 rounded down and T_D is the mean over the queries m to 2m − 1; otherwise m = n and T_D is the
// mean over all queries. T_D is NaN where no query sees that offset; R is NaN above the diagonal, where the key
// is invisible and where T is NaN. Over the body keys j = 1 … i that have a residual, weights w (`weights` [m, m]
// rows `weight_ld` apart, or null for equal ones) divided by their sum: row = Σ w R, variance = Σ w (R − row)²,
// NaN for fewer than two keys of positive weight; first = R_i0 − the mean of R over the body; lse = log Σ_{j<=i}
// exp s_ij, NaN for a query that sees no key. n²/8 exponentials.
template <class Scalar>
bool toeplitz_split(const MatrixView<Scalar>& scores, bool late, const double* weights, Index weight_ld,
                    const ToeplitzOutputs& out, ToeplitzWorkspace& workspace);

// What the causal mask alone does to the late queries r = m … 2m − 1, m = n/2 rounded down, that see themselves:
// cut to its nearest i + 1 keys, a query has the log-sum Λ_i = log Σ_{D<=i} exp s_{r,r−D}, and F_i = exp(Λ_i −
// Λ_{m−1}) of its attention is left. Their means: lse = Λ_i, cut = −log F_i >= 0, share = 1 − F_i in [0, 1], each
// [m], and the attention of the chosen queries (`queries` ascending, `count` of them) on key j = i − D, exp(s_D −
// Λ_i), to `attention`, rows `ld` apart, 0 for later keys. `body`: of the nearest i keys instead, on the keys
// 1 … i, NaN for query 0. `sink` is the logit of a learned sink, which counts in every log-sum, -infinity
// without one. NaN where no late query sees itself. n²/4 exponentials; attention by stick-breaking, p_D <- p_D·(1 −
// a_k), a_k the share of key k among the nearest k + 1, so that no score is too large.
template <class Scalar>
bool mask_only(const MatrixView<Scalar>& scores, double sink, const std::int64_t* queries, Index count, bool body,
               double* lse, double* cut, double* share, double* attention, Index ld,
               ToeplitzWorkspace& workspace);

// Mean, population variance and number of the entries at every offset D = 0 … n − 1 that are not -infinity; NaN
// where there is none. Welford 1962.
template <class Scalar>
bool offset_variance(const MatrixView<Scalar>& values, double* mean, double* variance, std::int64_t* count,
                     ToeplitzWorkspace& workspace);

}  // namespace attnscope
