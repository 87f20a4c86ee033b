// SPDX-License-Identifier: MIT
#include "kernels/graphs/fiedler.h"

#include <algorithm>
#include <cmath>

#include "graphs/laplacian_panels.h"
#include "linalg/eigenvalues.h"
#include "linalg/lanczos/shifted_lanczos.h"
#include "linalg/packed_tridiagonal.h"
#include "linalg/panel_cholesky.h"
#include "linalg/refinement/missed_eigenvalue.h"

namespace attnscope {
namespace {

// Up to this size the tridiagonal form costs less than a factor and the steps with it.
constexpr Index kLargestTridiagonal = 88;
// The kind of graph found while a matrix is read.
enum class Kind { connected, disconnected, signed_weights };

// M = L + s·uuᵀ of a pack in the lower triangles `a`, its unit null vectors u in
// `null`, and the shift s in every lane; weights are read_weights', whose powers of two go to
// `scales`. Lanes without a connected graph hold the unit matrix.
template <class Scalar>
void read_pack(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options, double shift,
               Lanes* a, Lanes* null, Kind* kinds, double* scales, FiedlerWorkspace& workspace) {
  const Index n = pack.front().rows();
  for (Index lane = 0; lane < kPackWidth; ++lane) {
    Kind kind = Kind::disconnected;
    if (lane < static_cast<Index>(pack.size())) {
      const bool graph =
          read_weights(pack[lane], options, workspace.graph, [&](Index i, const double* row) {
            for (Index j = 0; j < i; ++j) a[triangle_row(i) + j][lane] = row[j];
          });
      for (Index i = 0; i < n; ++i) null[i][lane] = workspace.graph.degree[i];
      kind = !graph ? Kind::signed_weights
             : is_connected(n, workspace.graph.queue,
                            [&](Index i, Index j) { return a[triangle_row(i) + j][lane]; })
                 ? Kind::connected
                 : Kind::disconnected;
      kinds[lane] = kind;
      scales[lane] = workspace.graph.scale;
    }
    if (kind == Kind::connected) continue;
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < i; ++j) a[triangle_row(i) + j][lane] = 1.0;
      null[i][lane] = static_cast<double>(n - 1);
    }
  }
  Lanes sum{};
  for (Index i = 0; i < n; ++i) sum += null[i];
  if (options.normalized) {
    for (Index i = 0; i < n; ++i) null[i] = 1.0 / square_root(null[i]);  // D^{-1/2}
    const Lanes unit = shift / sum;
    for (Index i = 0; i < n; ++i) {
      const Lanes scale = -null[i];
      const Lanes lift = unit / null[i];
      for (Index j = 0; j < i; ++j) {
        Lanes& entry = a[triangle_row(i) + j];
        entry = entry * scale * null[j] + lift / null[j];
      }
      a[triangle_row(i) + i] = 1.0 + lift / null[i];
    }
    const Lanes length = 1.0 / square_root(sum);
    for (Index i = 0; i < n; ++i) null[i] = length / null[i];
    return;
  }
  const double nodes = static_cast<double>(n);
  const Lanes lift = shift * sum / (nodes * nodes);  // u_i² s, u constant
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) a[triangle_row(i) + j] = lift - a[triangle_row(i) + j];
    a[triangle_row(i) + i] = null[i] + lift;
  }
  for (Index i = 0; i < n; ++i) null[i] = broadcast(1.0 / std::sqrt(nodes));
}

// λ2 of a pack from the tridiagonal form of L + s·uuᵀ, with s above λ2 so that λ2 is its smallest
// eigenvalue: λ2 <= n/(n−1)·min degree < 2·mean degree, and <= 2 when normalized. Unless normalized
// it is that of the weights times `scales`.
template <class Scalar>
Lanes by_tridiagonal(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                     Kind* kinds, double* scales, FiedlerWorkspace& workspace) {
  const Index n = pack.front().rows();
  Lanes* a = lane_buffer(workspace.matrix, triangle_row(n));
  Lanes* diagonal = lane_buffer(workspace.vectors, 7 * n);
  Lanes* beside = diagonal + n;
  Lanes* null = diagonal + 2 * n;
  read_pack(pack, options, 2.0, a, null, kinds, scales, workspace);
  tridiagonalize(a, n, diagonal, beside, 1, diagonal + 3 * n);
  Lanes norm{};
  for (Index i = 0; i < n; ++i) norm = larger(norm, diagonal[i]);
  for (Index i = 0; i + 1 < n; ++i) beside[i] *= beside[i];
  return smallest_eigenvalue(diagonal, beside, n, Lanes{}, norm);
}

// The factor between an eigenvalue of the weights that were read and one of the matrix.
double eigenvalue_scale(const GraphOptions& options, double scale) {
  return options.normalized ? 1.0 : scale;
}

// L of one matrix, of read_weights' weights, lifted by twice the mean degree (2 when normalized),
// which is above λ2. Memory is the workspace's.
template <class Scalar>
Kind read_graph(const MatrixView<Scalar>& attention, const GraphOptions& options,
                LaplacianPanels& laplacian, FiedlerWorkspace& workspace) {
  const Index n = attention.rows();
  const Index padded = panels_of(n) * kPanel;
  double* panels = workspace.panels.resize(panel_offset(panels_of(n)));
  const Index components = read_laplacian(attention, options, panels, workspace.graph);
  if (components == 0) return Kind::signed_weights;
  if (components > 1) return Kind::disconnected;
  const double* degree = workspace.graph.degree;
  double sum = 0.0;
  for (Index i = 0; i < n; ++i) sum += degree[i];
  const auto nodes = static_cast<double>(n);
  double* null = workspace.null.resize(padded);
  for (Index i = 0; i < n; ++i) {
    null[i] = options.normalized ? std::sqrt(degree[i] / sum) : 1.0 / std::sqrt(nodes);
  }
  std::fill(null + n, null + padded, 0.0);
  laplacian = {n, panels, null, options.normalized ? 2.0 : 2.0 * sum / nodes};
  return Kind::connected;
}

// The panels of M = L + lift·uuᵀ − σ, u the null vector, whose eigenvalue stays above λ2 − σ, in
// workspace.matrix.
double* shifted_panels(const LaplacianPanels& laplacian, double sigma,
                       FiedlerWorkspace& workspace) {
  const Index n = laplacian.n;
  const Index count = panels_of(n);
  double* to = workspace.matrix.resize(panel_offset(count));
  for (Index s = 0; s < count; ++s) {
    const Lanes* columns = lanes_at(laplacian.null + s * kPanel);
    const Lanes* entries = lanes_at(laplacian.panels + panel_offset(s));
    Lanes* rows = lanes_at(to + panel_offset(s));
    for (Index k = 0; k < (s + 1) * kPanel; ++k) {
      const double factor = laplacian.lift * laplacian.null[k];
      for (Index v = 0; v < kPanelVectors; ++v) rows[v] = entries[v] + factor * columns[v];
      entries += kPanelVectors;
      rows += kPanelVectors;
    }
  }
  for (Index i = 0; i < count * kPanel; ++i) {
    double& entry = to[panel_entry(i, i)];
    entry = i < n ? entry - sigma : 1.0;
  }
  return to;
}

// λ2 of one matrix from all eigenvalues of a dense symmetric solver: where to turn to when in
// doubt.
template <class Scalar>
double value_direct(const MatrixView<Scalar>& attention, const GraphOptions& options,
                    LaplacianWorkspace& workspace) {
  if (attention.rows() == 1) return 0.0;
  double smallest[2];
  laplacian_eigenvalues(attention, options, 2, smallest, workspace);
  return smallest[1];
}

// A new factor, and the first steps with it, cost as much as so many steps.
double steps_worth_a_shift(Index n) { return n < 192 ? 12.0 : n < 384 ? 16.0 : 24.0; }

// How far below the value that steps come to, in units of their tolerance, another eigenvalue would
// have to lie to matter.
constexpr double kClosestMissed = 25.0;

// λ2 of one matrix, times eigenvalue_scale, from Lanczos steps with the inverse of L − σ, σ = 0 at
// first. Where eigenvalues crowd above λ2 and the steps crawl, the shift moves up to just below λ2,
// as far as the residual allows: the new factor exists only if σ < λ2.
std::optional<double> by_factor(const LaplacianPanels& laplacian, double tolerance,
                                FiedlerWorkspace& workspace) {
  const Index n = laplacian.n;
  const Index count = panels_of(n);
  const Index padded = count * kPanel;
  double* inverses = workspace.inverses.resize(panel_inverses(n));
  double* basis = workspace.basis.resize((kMostLanczosSteps + 1 + kSecondVectors) * padded);
  std::copy(laplacian.null, laplacian.null + padded, basis);
  // What is no larger than a rounding of the largest degree cannot be told from 0. λ2 is at most
  // n/(n − 1) of the smallest entry of the diagonal (Fiedler 1973), and 1/θ.
  double rounding = 0.0;
  double most = laplacian.lift;
  for (Index i = 0; i < n; ++i) {
    const double entry = laplacian.panels[panel_entry(i, i)];
    rounding = std::max(rounding, 0x1p-53 * entry);
    most = std::min(most, entry * static_cast<double>(n) / static_cast<double>(n - 1));
  }
  double sigma = 0.0;
  double below = 0.0;  // the last shift that had a factor
  double* start = basis + padded;
  for (Index i = 0; i < padded; ++i) start[i] = i < n ? start_entry(i) : 0.0;
  remove_parts(basis, 1, padded, start);
  scale_vector(start, 1.0 / std::sqrt(inner_product(start, start, padded)), padded);
  for (int round = 0; round < 6; ++round) {
    double* panels = shifted_panels(laplacian, sigma, workspace);
    if (!panel_factorize(panels, count, inverses)) {
      if (round == 0 && most <= rounding) return most;
      if (sigma < 0.0) break;
      // Below the rounding of a factor, the matrix counts as singular.
      sigma = round == 0 ? -static_cast<double>(n) * rounding : below + 0.25 * (sigma - below);
      continue;
    }
    below = sigma;
    // A share of λ2 as one of θ. λ2 = σ + 1/θ: what the shift brings in is exact.
    const auto of_theta = [&](double share, double theta) {
      const double absolute = sigma < 0.0 ? rounding * theta : 0.0;
      return std::min(1e-3, std::max(share * (1.0 + sigma * theta), absolute));
    };
    const auto solve = [&](double* x) { panel_solve(panels, count, inverses, x); };
    const LanczosRound lanczos = lanczos_round(
        padded, n - 1, steps_worth_a_shift(n), basis,
        [&](double theta) { return of_theta(tolerance, theta); }, solve);
    if (!(lanczos.theta > 0.0)) break;
    const double value = std::max(0.0, sigma + 1.0 / lanczos.theta);
    if (value <= rounding) return value;
    double* ritz = basis + (lanczos.size + 1) * padded;
    form_ritz_vector(lanczos, basis, padded, ritz);
    if (lanczos.converged) {
      const double level =
          lanczos.theta * (1.0 + of_theta(kClosestMissed * tolerance, lanczos.theta));
      if (may_miss_eigenvalue(padded, n, basis, ritz, level, ritz, solve)) break;
      return value;
    }
    std::copy(ritz, ritz + padded, start);
    sigma += 1.0 / (lanczos.theta + 1.5 * lanczos.residual);
  }
  return std::nullopt;
}

// λ2 of one matrix, times eigenvalue_scale: from a float32 factor and corrections in float64, or
// from by_factor where these do not get there, or directly.
template <class Scalar>
double by_any_factor(const MatrixView<Scalar>& attention, const GraphOptions& options,
                     Precision precision, FiedlerWorkspace& workspace) {
  LaplacianPanels laplacian{};
  const Kind kind = read_graph(attention, options, laplacian, workspace);
  if (kind == Kind::disconnected) return 0.0;
  if (kind == Kind::connected) {
    const bool exact = precision == Precision::exact;
    std::optional<double> value =
        preconditioned_fiedler_value(laplacian, exact ? 5e-10 : 1e-7, workspace.preconditioned);
    if (value) return *value;
    workspace.exactly += exact ? 0 : 1;
    value = by_factor(laplacian, exact ? 1e-11 : 1e-8, workspace);
    if (value) return *value;
  }
  return value_direct(attention, options, workspace.laplacian) *
         eigenvalue_scale(options, workspace.graph.scale);
}

// The vector of an eigenvalue λ2 > 0, times eigenvalue_scale, that is known, from solves with the
// factor of L − σ, σ just below λ2. False where the residual does not fall to the rounding of the
// weights: others crowd around λ2.
bool vector_by_factor(const LaplacianPanels& laplacian, bool normalized, double value, double* out,
                      FiedlerWorkspace& workspace) {
  const Index n = laplacian.n;
  const Index count = panels_of(n);
  const Index padded = count * kPanel;
  double* inverses = workspace.inverses.resize(panel_inverses(n));
  const double* null = laplacian.null;
  double* x = workspace.basis.resize(2 * padded);
  double* y = x + padded;
  const double* degree = workspace.graph.degree;
  const double spread = normalized ? 2.0 : 2.0 * *std::max_element(degree, degree + n);
  double below = 1e-7 * value;
  for (int attempt = 0; attempt < 3; ++attempt) {
    double* panels = shifted_panels(laplacian, value - below, workspace);
    if (below < 1e-14 * spread || !panel_factorize(panels, count, inverses)) {
      below = std::max(1e3 * below, 1e-13 * spread);
      continue;
    }
    for (Index i = 0; i < padded; ++i) x[i] = i < n ? start_entry(i) : 0.0;
    remove_parts(null, 1, padded, x);
    scale_vector(x, 1.0 / std::sqrt(inner_product(x, x, padded)), padded);
    for (int step = 0; step < 12; ++step) {
      std::copy(x, x + padded, y);
      panel_solve(panels, count, inverses, y);
      remove_parts(null, 1, padded, y);
      const double length = std::sqrt(inner_product(y, y, padded));
      if (!(length > 0.0)) return false;
      scale_vector(y, 1.0 / length, padded);
      // (L − σ) y is x / length, so that its part across y is the residual.
      const double along = inner_product(x, y, padded);
      add_multiple(x, -along, y, padded);
      const double residual = std::sqrt(inner_product(x, x, padded)) / length;
      std::swap(x, y);
      if (step > 0 && residual <= 2e-15 * spread) {
        std::copy(x, x + n, out);
        return true;
      }
    }
    return false;
  }
  return false;
}

// Entries that tie in exact arithmetic differ by rounding; the first within rounding of the largest
// decides the sign.
void choose_sign(double* vector, Index n) {
  const double largest = largest_magnitude(vector, n);
  for (Index i = 0; i < n; ++i) {
    if (std::abs(vector[i]) < largest * (1.0 - 1e-9)) continue;
    if (vector[i] < 0.0) scale_vector(vector, -1.0, n);
    return;
  }
}

// The vector from all eigenvectors of a dense symmetric solver.
template <class Scalar>
void vector_direct(const MatrixView<Scalar>& attention, const GraphOptions& options, double* out,
                   LaplacianWorkspace& workspace) {
  const Index n = attention.rows();
  Eigen::Map<Eigen::VectorXd> vector(out, n);
  const bool graph = graph_weights(attention, options, workspace);
  if (!graph && options.normalized && workspace.degree.minCoeff() < 0.0) {
    vector.setConstant(kNaN);
    return;
  }
  Eigen::VectorXd null = options.normalized ? Eigen::VectorXd(workspace.degree.cwiseSqrt())
                                            : Eigen::VectorXd(Eigen::VectorXd::Ones(n));
  if (null.norm() == 0.0) null.setOnes();  // no edge at all: every vector is a null vector
  null.normalize();
  laplacian_from_weights(options.normalized, workspace);
  // The null vector is lifted above the spectrum, so that the smallest eigenvalue left is λ2 and
  // its vector is orthogonal to the null vector even where λ2 is 0 too. With negative weights it
  // need not be the smallest, and the second eigenvector is taken as it is. Not higher than it
  // takes, or weights far below 1 would drown in its rounding.
  const double spread = workspace.weights.cwiseAbs().rowwise().sum().maxCoeff();
  const double lift = spread > 0.0 ? 2.0 * spread : 1.0;
  if (graph) workspace.weights += lift * null * null.transpose();
  vector = symmetric_eigen(workspace.weights).vectors.col(graph ? 0 : 1);
  if (graph) vector -= null.dot(vector) * null;
  vector.normalize();
}

}  // namespace

Index fiedler_pack_width(Index smallest) {
  return smallest <= kLargestTridiagonal ? kPackWidth : 1;
}

template <class Scalar>
void fiedler_values(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                    Precision precision, double* out, FiedlerWorkspace& workspace) {
  const Index n = pack.front().rows();
  const Index count = static_cast<Index>(pack.size());
  if (n < 3 || n > kLargestTridiagonal) {
    for (Index k = 0; k < count; ++k) {
      if (n < 3) {
        out[k] = value_direct(pack[k], options, workspace.laplacian);
        continue;
      }
      const double scaled = by_any_factor(pack[k], options, precision, workspace);
      out[k] = scaled / eigenvalue_scale(options, workspace.graph.scale);
    }
    return;
  }
  Kind kinds[kPackWidth];
  double scales[kPackWidth];
  const Lanes values = by_tridiagonal(pack, options, kinds, scales, workspace);
  for (Index k = 0; k < count; ++k) {
    if (kinds[k] == Kind::disconnected) {
      out[k] = 0.0;
    } else if (kinds[k] == Kind::signed_weights || !(values[k] >= 0.0)) {
      out[k] = value_direct(pack[k], options, workspace.laplacian);
    } else {
      out[k] = values[k] / eigenvalue_scale(options, scales[k]);
    }
  }
}

template <class Scalar>
void fiedler_vector(const MatrixView<Scalar>& attention, const GraphOptions& options, double* out,
                    FiedlerWorkspace& workspace) {
  const Index n = attention.rows();
  if (n == 1) {
    out[0] = kNaN;
    return;
  }
  // One matrix alone has nothing to share a pack with.
  double value = 0.0;
  LaplacianPanels laplacian{};
  if (n >= 3 && read_graph(attention, options, laplacian, workspace) == Kind::connected)
    value = by_factor(laplacian, 1e-10, workspace).value_or(0.0);
  if (!(value > 0.0) || !vector_by_factor(laplacian, options.normalized, value, out, workspace)) {
    vector_direct(attention, options, out, workspace.laplacian);
  }
  choose_sign(out, n);
}

ATTNSCOPE_COMPILE(fiedler_values);
ATTNSCOPE_COMPILE(fiedler_vector);

}  // namespace attnscope
