// SPDX-License-Identifier: MIT
#include "kernels/graphs/laplacian.h"

#include <algorithm>
#include <cmath>

#include "graphs/laplacian_panels.h"
#include "linalg/eigenvalues.h"
#include "linalg/packed_tridiagonal.h"
#include "linalg/panel_tridiagonal.h"

namespace attnscope {
namespace {

// Up to this size a pack stays near the second-level cache; beyond, one matrix at a time does.
constexpr Index kLargestPacked = 256;

// The Laplacians of up to kPackWidth matrices, times read_weights' `scales`, in the lower triangles
// `a`, zeros in lanes without one, and the components_of each.
template <class Scalar>
void read_laplacians(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                     Lanes* a, Lanes* degrees, Index* components, double* scales,
                     GraphRows& workspace) {
  const Index n = pack.front().rows();
  if (pack.size() < kPackWidth) {
    std::fill(a, a + triangle_row(n), Lanes{});
    std::fill(degrees, degrees + n, Lanes{});
  }
  for (std::size_t m = 0; m < pack.size(); ++m) {
    const auto lane = static_cast<Index>(m);
    const bool graph = read_weights(pack[m], options, workspace, [&](Index i, const double* row) {
      for (Index j = 0; j < i; ++j) a[triangle_row(i) + j][lane] = row[j];
    });
    components[m] = components_of(graph, n, workspace,
                                  [&](Index i, Index j) { return a[triangle_row(i) + j][lane]; });
    scales[m] = workspace.scale;
    for (Index i = 0; i < n; ++i) {
      const double d = components[m] == 0 ? 0.0 : workspace.degree[i];
      degrees[i][lane] = d;
      a[triangle_row(i) + i][lane] = options.normalized && d > 0.0 ? 1.0 : d;
      if (components[m] > 0) continue;
      for (Index j = 0; j < i; ++j) a[triangle_row(i) + j][lane] = 0.0;
    }
  }
  if (options.normalized) {
    const Lanes one = broadcast(1.0);
    for (Index i = 0; i < n; ++i) {
      degrees[i] = degrees[i] > 0.0 ? one / square_root(degrees[i]) : Lanes{};
    }
  }
  for (Index i = 0; i < n; ++i) {
    Lanes* row = a + triangle_row(i);
    if (options.normalized) {
      for (Index j = 0; j < i; ++j) row[j] = -row[j] * degrees[i] * degrees[j];
    } else {
      for (Index j = 0; j < i; ++j) row[j] = -row[j];
    }
  }
}

}  // namespace

template <class Scalar>
bool graph_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                   LaplacianWorkspace& workspace) {
  const Index n = attention.rows();
  Eigen::MatrixXd& w = workspace.weights;
  w.setZero(n, n);
  const bool graph =
      read_weights(attention, options, workspace.graph, [&](Index i, const double* row) {
        for (Index j = 0; j < i; ++j) w(i, j) = w(j, i) = row[j];
      });
  workspace.degree = w.colwise().sum().transpose();
  return graph;
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

template <class Scalar>
void laplacian_eigenvalues(const MatrixView<Scalar>& attention, const GraphOptions& options,
                           Index k, double* out, LaplacianWorkspace& workspace) {
  const bool graph = graph_weights(attention, options, workspace);
  const auto weight = [&](Index i, Index j) { return workspace.weights(i, j); };
  const Index components =
      graph ? count_graph_components(attention.rows(), workspace.graph.queue, weight) : 0;
  laplacian_from_weights(options.normalized, workspace);
  if (!graph && options.normalized && workspace.degree.minCoeff() < 0.0) {
    std::fill(out, out + k, kNaN);
    return;
  }
  const Eigen::VectorXd values = symmetric_eigenvalues(workspace.weights);
  const double scale = options.normalized ? 1.0 : workspace.graph.scale;
  for (Index i = 0; i < k; ++i) {
    const double value = values[i] / scale;
    // A graph's Laplacian has no negative eigenvalue: one below 0 is rounding.
    out[i] = !graph ? value : i < components ? 0.0 : std::max(0.0, value);
  }
}

Index laplacian_pack_width(Index smallest) {
  // More of large ones would leave other threads without work.
  return smallest > 128 ? kPackWidth : dqds_width();
}

template <class Scalar>
void laplacian_spectra(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                       Index k, std::span<double* const> out, LaplacianWorkspace& workspace) {
  const Index n = pack.front().rows();
  const auto count = static_cast<Index>(pack.size());
  if (n < 3) {
    for (std::size_t m = 0; m < pack.size(); ++m) {
      laplacian_eigenvalues(pack[m], options, k, out[m], workspace);
    }
    return;
  }
  const Index width = dqds_width();
  double* diagonal = workspace.tridiagonals.resize(2 * n * width);
  double* beside = diagonal + n * width;
  std::fill(diagonal, diagonal + 2 * n * width, 0.0);
  Index components[kMostTogether];
  double scales[kMostTogether];
  for (Index first = 0; first < count && n <= kLargestPacked; first += kPackWidth) {
    Lanes* a = lane_buffer(workspace.pack, triangle_row(n));
    Lanes* degrees = lane_buffer(workspace.vectors, n);
    const auto part = pack.subspan(first, std::min(kPackWidth, count - first));
    read_laplacians(part, options, a, degrees, components + first, scales + first, workspace.graph);
    tridiagonalize(a, n, lanes_at(diagonal + first), lanes_at(beside + first), width / kPackWidth,
                   lane_buffer(workspace.vectors, 4 * n));
  }
  for (Index m = 0; m < count && n > kLargestPacked; ++m) {
    double* panels = workspace.pack.resize(panel_offset(panels_of(n)));
    components[m] = read_laplacian(pack[m], options, panels, workspace.graph);
    scales[m] = workspace.graph.scale;
    if (components[m] == 0) continue;
    panel_tridiagonalize(panels, n, diagonal + m, beside + m, width, workspace.vectors);
  }
  workspace.values.resize(count * n);
  const double* values = workspace.values.data();
  tridiagonal_eigenvalues(diagonal, beside, n, count, workspace.values.data(), workspace.dqds);
  for (Index m = 0; m < count; ++m) {
    if (components[m] == 0) {
      laplacian_eigenvalues(pack[m], options, k, out[m], workspace);
      continue;
    }
    const double scale = options.normalized ? 1.0 : scales[m];
    for (Index i = 0; i < k; ++i) {
      out[m][i] = i < components[m] ? 0.0 : std::max(0.0, values[(m + 1) * n - 1 - i] / scale);
    }
  }
}

ATTNSCOPE_COMPILE(graph_weights);
ATTNSCOPE_COMPILE(laplacian_eigenvalues);
ATTNSCOPE_COMPILE(laplacian_spectra);

}  // namespace attnscope
