// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <span>
#include <vector>

#include "graphs/graph_options.h"
#include "linalg/dqds.h"
#include "matrix/matrix_view.h"
#include "simd/precision.h"

namespace attnscope {

struct LaplacianWorkspace {
  Eigen::MatrixXd weights;
  Eigen::VectorXd degree;
  GraphRows graph;
  AlignedBuffer pack;
  AlignedBuffer float_pack;
  AlignedBuffer vectors;
  AlignedBuffer tridiagonals;
  std::vector<double> values;
  DqdsWorkspace dqds;
};

// Writes W of the options' graph (symmetric, zero diagonal), times workspace.graph.scale, to
// workspace.weights and its row sums to workspace.degree. Entries are widened to float64 before
// they are compared or added. Returns whether no weight is negative, without which zero eigenvalues
// say nothing about components.
template <class Scalar>
bool graph_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                   LaplacianWorkspace& workspace);

// Turns workspace.weights into the Laplacian of the options' kind, in place. Normalized, a negative
// degree has no square root and makes its row and column NaN.
void laplacian_from_weights(bool normalized, LaplacianWorkspace& workspace);

// The k smallest eigenvalues of the Laplacian, ascending, to `out`; 1 <= k <= n. At least as many
// of them are exactly 0 as the graph has components: weights that rounding of the largest degree
// swallows can leave more. Range: [0, 2·max degree], normalized [0, 2]. n = 1: {0}. Negative
// weights give the eigenvalues as they are, negative or not; NaN where a negative degree would have
// to be normalized. From a dense symmetric solver: the reference for laplacian_spectra, and where
// it turns to when in doubt. Cost O(n³).
template <class Scalar>
void laplacian_eigenvalues(const MatrixView<Scalar>& attention, const GraphOptions& options,
                           Index k, double* out, LaplacianWorkspace& workspace);

// Matrices that laplacian_spectra takes at once, of a batch whose smallest has this size.
Index laplacian_pack_width(Index smallest, Precision precision = Precision::exact);

// The same for 1 to laplacian_pack_width(n) matrices of one size n, the values of pack[m] to
// out[m]: their Laplacians are made tridiagonal side by side, beyond 256 tokens one after another.
// A matrix's values do not depend on the others. Absolute error below 1e-13 of the largest
// eigenvalue, `fast`, which is float32 arithmetic up to 256 tokens, below 1e-5. Cost 4n³/3
// operations each.
template <class Scalar>
void laplacian_spectra(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                       Index k, std::span<double* const> out, LaplacianWorkspace& workspace,
                       Precision precision = Precision::exact);

}  // namespace attnscope
