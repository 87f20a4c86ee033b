// SPDX-License-Identifier: MIT
#pragma once

#include <functional>

#include "matrix/matrix_view.h"
#include "simd/memory.h"

namespace attnscope {

// Who works on the parts of one large matrix: share(parts, work) calls work(part, worker) once for
// each part, in any order, with worker in [0, workers) and two calls of one worker never at once.
// Without `share` the caller does them in turn.
struct SharedWork {
  int workers = 1;
  std::function<void(Index parts, const std::function<void(Index part, int worker)>& work)> share;
};

struct ParticipationRatioWorkspace {
  AlignedBuffer matrix;
  AlignedBuffer row;
  AlignedBuffer gram;
  AlignedBuffer rectangle;
  AlignedBuffer factor;
};

// (Σe)²/Σe² over the energies e = σ² of one matrix, as ‖A‖_F⁴/‖AᵀA‖_F²: no decomposition. Range [1,
// min(rows, columns)]; NaN for a matrix of zeros. Cost n³ operations, n³/3 when A is causal. A
// rectangle is factored to a square first. The same bits however the work is shared.
template <class Scalar>
double participation_ratio_singular(const MatrixView<Scalar>& matrix,
                                    ParticipationRatioWorkspace& workspace,
                                    const SharedWork& shared = {});

// The same of a square matrix with a relative error below 1e-5: products of float32 numbers, whose
// sums over 64 rows at a time are added up in float64, or the exact ratio of a matrix so small that
// it takes no longer. False, and nothing written, where an entry of a larger one is negative,
// because only sums of numbers of one sign hold that bound, or where the matrix is not square.
template <class Scalar>
bool fast_participation_ratio(const MatrixView<Scalar>& matrix, double* out,
                              ParticipationRatioWorkspace& workspace,
                              const SharedWork& shared = {});

// (Σ|λ|)²/Σ|λ|² over the eigenvalues of one matrix: its diagonal when it is causal, a general
// solver otherwise. Range [1, n]; NaN where every eigenvalue is 0. Cost O(n) or O(n³). Throws
// std::runtime_error when the solver does not converge.
template <class Scalar>
double participation_ratio_eigen(const MatrixView<Scalar>& matrix,
                                 ParticipationRatioWorkspace& workspace);

// tr(L)²/‖L‖_F² of the Laplacian of W = (A + Aᵀ)/2 without its diagonal. Range [1, n − 1]; NaN for
// a graph without edges (n = 1). Cost O(n²).
template <class Scalar>
double participation_ratio_laplacian(const MatrixView<Scalar>& matrix,
                                     ParticipationRatioWorkspace& workspace);

}  // namespace attnscope
