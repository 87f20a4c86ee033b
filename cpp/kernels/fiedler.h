// SPDX-License-Identifier: MIT
#pragma once

#include "kernels/laplacian.h"

namespace attnscope {

// λ2 of the options' graph: the second smallest Laplacian eigenvalue (algebraic connectivity). Range
// [0, n/(n−1)·min degree], normalized [0, n/(n−1)]; exactly 0 when the graph is disconnected. n = 1: 0.
// Cost O(n³).
template <class Scalar>
double fiedler_value(const MatrixView<Scalar>& attention, const GraphOptions& options,
                     LaplacianWorkspace& workspace);

// A unit eigenvector of λ2, orthogonal to the null vector (1, or D^{1/2}·1 when normalized), its
// component of largest magnitude positive (the first such on ties), to `out` [n]. Where λ2 is degenerate
// it is one such vector of the eigenspace. n = 1: NaN.
template <class Scalar>
void fiedler_vector(const MatrixView<Scalar>& attention, const GraphOptions& options, double* out,
                    LaplacianWorkspace& workspace);

}  // namespace attnscope
