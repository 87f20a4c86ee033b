// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "matrix/matrix_view.h"
#include "simd/memory.h"
#include "simd/precision.h"

namespace attnscope {

// Bidiagonal matrices that `bidiagonal_singular_values` solves side by side, kMostTogether in no
// instruction set.
Index dqds_width();
inline constexpr std::size_t kMostTogether = 32;

struct DqdsWorkspace {
  AlignedBuffer arrays;
  AlignedBuffer factors;
  std::vector<double> values;
};

// Singular values, descending, of dqds_width() upper bidiagonal matrices: row i of `diagonal` and
// of `superdiagonal` holds entry i of every matrix (dqds_width() numbers; row n − 1 of
// `superdiagonal` is not read). out[lane] receives n values; a null pointer leaves the lane out.
// Absolute error below 1e-14·σ1, and a lane's values do not depend on the others.
//
// Shifted differential quotient-difference sweeps (Fernando and Parlett 1994; Parlett and Marques
// 2000). A lane that has not converged after `most_sweeps` sweeps (0: 60·n) is solved by QR steps
// instead. `fast`: of matrices that float32 arithmetic made, an absolute error below 1e-7·σ1. Cost
// O(n²).
void bidiagonal_singular_values(const double* diagonal, const double* superdiagonal, Index n,
                                std::span<double* const> out, DqdsWorkspace& workspace,
                                Index most_sweeps = 0, Precision precision = Precision::exact);

// Eigenvalues, descending, of dqds_width() symmetric tridiagonal matrices, stored in the same way,
// of the first `count` to values + lane·n; those below 0 are as good as the others. Absolute error
// below 1e-13 of the largest row sum. A matrix that is positive semidefinite to rounding loses
// nothing to a shift, nor with `fast` one that is to float32's: then the error is below 1e-6.
void tridiagonal_eigenvalues(const double* diagonal, const double* beside, Index n, Index count,
                             double* values, DqdsWorkspace& workspace,
                             Precision precision = Precision::exact);

}  // namespace attnscope
