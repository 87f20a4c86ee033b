// SPDX-License-Identifier: MIT
#include "kernels/laplacian.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace attnscope {
namespace {

Index find_root(std::vector<Index>& parent, Index node) {
  while (parent[node] != node) {
    parent[node] = parent[parent[node]];
    node = parent[node];
  }
  return node;
}

double edge_weight(double a, double b, const GraphOptions& options) {
  if (options.threshold) return std::max(a, b) >= *options.threshold ? 1.0 : 0.0;
  switch (options.symmetrize) {
    case Symmetrize::mean:
      return 0.5 * (a + b);
    case Symmetrize::max:
      return std::max(a, b);
    case Symmetrize::min:
      return std::min(a, b);
  }
  return 0.0;
}

}  // namespace

template <class Scalar>
bool graph_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                   LaplacianWorkspace& workspace) {
  const Index n = attention.rows();
  Eigen::MatrixXd& w = workspace.weights;
  w.resize(n, n);
  for (Index i = 0; i < n; ++i) {
    w(i, i) = 0.0;
    for (Index j = 0; j < i; ++j) {
      const double weight = edge_weight(static_cast<double>(attention(i, j)),
                                        static_cast<double>(attention(j, i)), options);
      w(i, j) = weight;
      w(j, i) = weight;
    }
  }
  workspace.degree = w.colwise().sum().transpose();
  return w.minCoeff() >= 0.0;
}

void laplacian_from_weights(bool normalized, LaplacianWorkspace& workspace) {
  Eigen::MatrixXd& w = workspace.weights;
  const Eigen::VectorXd& degree = workspace.degree;
  const Index n = w.rows();
  if (!normalized) {
    w = -w;
    w.diagonal() = degree;
    return;
  }
  const Eigen::VectorXd scale =
      degree.unaryExpr([](double d) { return d == 0.0 ? 0.0 : 1.0 / std::sqrt(d); });
  w = -(scale.asDiagonal() * w * scale.asDiagonal());
  for (Index i = 0; i < n; ++i) w(i, i) = degree[i] == 0.0 ? 0.0 : 1.0;
}

Index count_components(LaplacianWorkspace& workspace) {
  const Eigen::MatrixXd& w = workspace.weights;
  const Index n = w.rows();
  std::vector<Index>& parent = workspace.parent;
  parent.resize(static_cast<std::size_t>(n));
  std::iota(parent.begin(), parent.end(), Index{0});
  Index components = n;
  for (Index j = 0; j < n && components > 1; ++j) {
    for (Index i = j + 1; i < n; ++i) {
      if (w(i, j) <= 0.0) continue;
      const Index a = find_root(parent, i);
      const Index b = find_root(parent, j);
      if (a == b) continue;
      parent[a] = b;
      --components;
    }
  }
  return components;
}

template <class Scalar>
void laplacian_eigenvalues(const MatrixView<Scalar>& attention, const GraphOptions& options, Index k,
                           double* out, LaplacianWorkspace& workspace) {
  const bool graph = graph_weights(attention, options, workspace);
  const Index components = graph ? count_components(workspace) : 0;
  laplacian_from_weights(options.normalized, workspace);
  if (!graph && options.normalized && workspace.degree.minCoeff() < 0.0) {
    std::fill(out, out + k, std::numeric_limits<double>::quiet_NaN());
    return;
  }
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(workspace.weights,
                                                              Eigen::EigenvaluesOnly);
  for (Index i = 0; i < k; ++i) {
    const double value = solver.eigenvalues()[i];
    // A graph's Laplacian has no negative eigenvalue: one below 0 is rounding.
    out[i] = !graph ? value : i < components ? 0.0 : std::max(0.0, value);
  }
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                              \
  template bool graph_weights<Scalar>(const MatrixView<Scalar>&, const GraphOptions&,              \
                                      LaplacianWorkspace&);                                        \
  template void laplacian_eigenvalues<Scalar>(const MatrixView<Scalar>&, const GraphOptions&, Index, \
                                              double*, LaplacianWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
