// SPDX-License-Identifier: MIT
#include "kernels/graphs/laplacian.h"

#include <algorithm>
#include <cmath>

#include "graphs/laplacian_panels.h"
#include "linalg/eigenvalues.h"
#include "linalg/float_packs.h"
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

// The k smallest of workspace.values, n of each matrix and descending, to `out`.
template <class Scalar>
void put_spectra(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options, Index k,
                 const Index* components, const double* scales, std::span<double* const> out,
                 LaplacianWorkspace& workspace) {
  const Index n = pack.front().rows();
  const auto count = static_cast<Index>(pack.size());
  const double* values = workspace.values.data();
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

// The Laplacians of up to kPackWidth matrices in half of a float32 pack, each times the power of
// two that brings a largest degree far from 1 to it, which goes to `scales`.
template <class Scalar>
void read_float_laplacians(std::span<const MatrixView<Scalar>> part, const GraphOptions& options,
                           Index half, FloatLanes* a, Index* components, double* scales,
                           LaplacianWorkspace& workspace) {
  const Index n = part.front().rows();
  Lanes* wide = lane_buffer(workspace.pack, triangle_row(n));
  read_laplacians(part, options, wide, lane_buffer(workspace.vectors, n), components, scales,
                  workspace.graph);
  Lanes factors = broadcast(1.0);
  for (Index m = 0; m < static_cast<Index>(part.size()) && !options.normalized; ++m) {
    double largest = 0.0;
    for (Index i = 0; i < n; ++i) largest = std::max(largest, wide[triangle_row(i) + i][m]);
    if (largest == 0.0 || (largest > 1e-6 && largest < 1e6)) continue;
    factors[m] = unit_power(largest);
    scales[m] *= factors[m];
  }
  if (any(factors != 1.0)) {
    for (Index i = 0; i < triangle_row(n); ++i) wide[i] *= factors;
  }
  narrow(wide, triangle_row(n), half, a);
}

template <class Scalar>
void float_spectra(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options, Index k,
                   std::span<double* const> out, LaplacianWorkspace& workspace) {
  const Index n = pack.front().rows();
  const auto count = static_cast<Index>(pack.size());
  const Index width = dqds_width();
  Index components[kMostTogether];
  double scales[kMostTogether];
  const Index room = (count + kFloatsInPack - 1) / kFloatsInPack * kFloatsInPack;
  double* groups = workspace.tridiagonals.resize((room + width - 1) / width * group_size(n));
  for (Index first = 0; first < count; first += kFloatsInPack) {
    FloatLanes* a = float_lane_buffer(workspace.float_pack, triangle_row(n));
    if (count - first <= kPackWidth) std::fill(a, a + triangle_row(n), FloatLanes{});
    for (Index half = 0; half < 2 && first + half * kPackWidth < count; ++half) {
      const Index begin = first + half * kPackWidth;
      read_float_laplacians(pack.subspan(begin, std::min(kPackWidth, count - begin)), options, half,
                            a, components + begin, scales + begin, workspace);
    }
    FloatLanes* diagonal = float_lane_buffer(workspace.vectors, 6 * n);
    FloatLanes* beside = diagonal + n;
    std::fill(beside, beside + n, FloatLanes{});
    tridiagonalize(a, n, diagonal, beside, 1, diagonal + 2 * n);
    widen_lines(diagonal, beside, n, first, groups);
  }
  workspace.values.resize(count * n);
  for (Index first = 0; first < count; first += width) {
    const double* diagonal = groups + first / width * group_size(n);
    tridiagonal_eigenvalues(diagonal, diagonal + n * width, n, std::min(width, count - first),
                            workspace.values.data() + first * n, workspace.dqds, Precision::fast);
  }
  put_spectra(pack, options, k, components, scales, out, workspace);
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

Index laplacian_pack_width(Index smallest, Precision precision) {
  if (precision == Precision::fast && smallest <= kLargestPacked)
    return std::max(kFloatsInPack, dqds_width());
  return dqds_width();
}

template <class Scalar>
void laplacian_spectra(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                       Index k, std::span<double* const> out, LaplacianWorkspace& workspace,
                       Precision precision) {
  const Index n = pack.front().rows();
  const auto count = static_cast<Index>(pack.size());
  if (n < 3) {
    for (std::size_t m = 0; m < pack.size(); ++m) {
      laplacian_eigenvalues(pack[m], options, k, out[m], workspace);
    }
    return;
  }
  if (precision == Precision::fast && n <= kLargestPacked) {
    float_spectra(pack, options, k, out, workspace);
    return;
  }
  const Index width = dqds_width();
  if (count > width) {
    // A fast pack of smaller matrices is wider.
    for (Index first = 0; first < count; first += width) {
      const Index together = std::min(width, count - first);
      laplacian_spectra(pack.subspan(first, together), options, k, out.subspan(first, together),
                        workspace);
    }
    return;
  }
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
  tridiagonal_eigenvalues(diagonal, beside, n, count, workspace.values.data(), workspace.dqds);
  put_spectra(pack, options, k, components, scales, out, workspace);
}

ATTNSCOPE_COMPILE(graph_weights);
ATTNSCOPE_COMPILE(laplacian_eigenvalues);
ATTNSCOPE_COMPILE(laplacian_spectra);

}  // namespace attnscope
