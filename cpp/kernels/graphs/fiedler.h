// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "graphs/preconditioned_fiedler.h"
#include "kernels/graphs/laplacian.h"
#include "simd/memory.h"
#include "simd/precision.h"

namespace attnscope {

struct FiedlerWorkspace {
  AlignedBuffer matrix;
  AlignedBuffer panels;
  AlignedBuffer null;
  AlignedBuffer vectors;
  AlignedBuffer inverses;
  AlignedBuffer basis;
  GraphRows graph;
  PreconditionedFiedlerWorkspace preconditioned;
  LaplacianWorkspace laplacian;
  Index exactly = 0;  // matrices so far that `fast` left to float64 arithmetic
};

// How many matrices fiedler_values takes at once, of a batch whose smallest has this size.
Index fiedler_pack_width(Index smallest);

// λ2 of the options' graph for 1 to fiedler_pack_width(n) matrices of one size n, to out[k] for
// pack[k]: the second smallest Laplacian eigenvalue (algebraic connectivity). Range [0, n/(n−1)·min
// degree], normalized [0, n/(n−1)]; exactly 0 when the graph is disconnected. n = 1: 0. Negative
// weights, which are no graph, get the second smallest eigenvalue as it is, negative or not;
// normalized, a negative degree gives NaN. The relative error is below 1e-9, `fast` below 1e-6, or
// a rounding of the largest degree where that is more. A matrix's result does not depend on the
// others in its pack.
//
// n <= 88: tridiagonal form of a pack and Laguerre's iteration. Larger: the Cholesky factor of
// L + s·uuᵀ − σ, u the null vector, and Lanczos steps with its inverse until the residual
// says stop, σ moving up to λ2 where they crawl: in float32, with residuals and Rayleigh quotients
// in float64 that say how far the value can be off, and where float32 does not hold that, in
// float64. Steps from a second start say whether the first missed an eigenvalue. Where that may be,
// or steps do not converge, all eigenvalues directly. Cost n³/3 to 4/3 n³ operations.
template <class Scalar>
void fiedler_values(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                    Precision precision, double* out, FiedlerWorkspace& workspace);

// A unit eigenvector of λ2, orthogonal to the null vector (1, or D^{1/2}·1 when normalized), its
// component of largest magnitude positive (the first such on ties), to `out` [n]. Where λ2 is
// degenerate it is one such vector of the eigenspace. n = 1: NaN. Its residual is below 1e-14 of
// the largest eigenvalue: by inverse iteration, or from all eigenvectors where others crowd around
// λ2, the graph is disconnected, or weights are negative.
template <class Scalar>
void fiedler_vector(const MatrixView<Scalar>& attention, const GraphOptions& options, double* out,
                    FiedlerWorkspace& workspace);

}  // namespace attnscope
