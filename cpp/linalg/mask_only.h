// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "matrix/matrix_view.h"
#include "simd/memory.h"

namespace attnscope {

struct MaskOnlyWorkspace {
  RowScratch rows;
  AlignedBuffer sums;       // over late rows by offset, and late rows of which attention is made
  AlignedBuffer attention;  // its sum over late rows, by query and offset
};

// What the causal mask alone does to the late queries r = m … 2m − 1, m = n/2 rounded down, that
// see themselves: cut to its nearest i + 1 keys, a query has the log-sum Λ_i = log Σ_{D<=i} exp
// s_{r,r−D}, and F_i = exp(Λ_i − Λ_{m−1}) of its attention is left. Their means: lse = Λ_i, cut =
// −log F_i >= 0, share = 1 − F_i in [0, 1], each [m], and the attention of the chosen queries
// (`queries` ascending, `count` of them) on key j = i − D, exp(s_D − Λ_i), to `attention`, rows
// `ld` apart, 0 for later keys. `body`: of the nearest i keys instead, on the keys 1 … i, NaN for
// query 0. `sink` is the logit of a learned sink, which counts in every log-sum, -infinity without
// one. NaN where no late query sees itself. The matrix is read once; false and NaN as in
// toeplitz.h. n²/4 exponentials, less the row's largest score, so that no score is too large; where
// the nearest key lies 256 below it, less the largest score so far, with count·n²/8 exponentials
// more for the attention. `ahead`: the matrix of the call that follows.
template <class Scalar>
bool mask_only(const MatrixView<Scalar>& scores, double sink, const std::int64_t* queries,
               Index count, bool body, double* lse, double* cut, double* share, double* attention,
               Index ld, MaskOnlyWorkspace& workspace, Ahead ahead = {});

}  // namespace attnscope
