// SPDX-License-Identifier: MIT
#include "kernels/fiedler.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/inverse_lanczos.h"
#include "kernels/base/packed_cholesky.h"
#include "kernels/base/packed_tridiagonal.h"

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Where one method overtakes the next.
constexpr Index kLargestTridiagonal = 32;
constexpr Index kSmallestBlocked = 640;

// What a matrix turned out to be while it was read.
enum class Kind { connected, disconnected, signed_weights };

// One lane of a pack as a strided array of its own.
class Lane {
 public:
  Lane(Lanes* pack, Index lane) : data_(reinterpret_cast<double*>(pack) + lane) {}
  double& operator[](Index entry) const { return data_[entry * kPackWidth]; }

 private:
  double* data_;
};

// Breadth-first search from node 0 through positive weights; weight(i, j) needs i > j.
template <class Weight>
bool is_connected(Index n, std::vector<Index>& queue, Weight&& weight) {
  Index direct = 1;
  while (direct < n && weight(direct, 0) > 0.0) ++direct;
  if (direct == n) return true;  // node 0 touches all: every map with a sink, and most others
  queue.resize(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) queue[i] = i;
  Index reached = 1;  // queue[0, reached) is reached, the rest is not
  for (Index head = 0; head < reached && reached < n; ++head) {
    for (Index k = reached; k < n; ++k) {
      const Index a = std::max(queue[head], queue[k]);
      const Index b = std::min(queue[head], queue[k]);
      if (weight(a, b) > 0.0) std::swap(queue[k], queue[reached++]);
    }
  }
  return reached == n;
}

// Writes the weights W_ij, j < i, of one matrix through store(i, j, w) and the degrees to degree[i].
// Returns whether all weights are >= 0.
template <class Scalar, class Store, class Degree>
bool read_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                  std::vector<double>& row, Degree&& degree, Store&& store) {
  const Index n = attention.rows();
  const bool causal = is_causal(attention);
  const Scalar* data = attention.data();
  const Index down = attention.outerStride();
  const Index right = attention.innerStride();
  row.resize(static_cast<std::size_t>(2 * n));
  double* forward = row.data();
  double* backward = forward + n;
  std::fill(backward, backward + n, 0.0);
  double smallest = 0.0;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) forward[j] = static_cast<double>(data[i * down + j * right]);
    if (!causal) {
      for (Index j = 0; j < i; ++j) backward[j] = static_cast<double>(data[j * down + i * right]);
    }
    if (options.threshold) {
      const double threshold = *options.threshold;
      for (Index j = 0; j < i; ++j) {
        forward[j] = std::max(forward[j], backward[j]) >= threshold ? 1.0 : 0.0;
      }
    } else if (options.symmetrize == Symmetrize::mean) {
      for (Index j = 0; j < i; ++j) forward[j] = 0.5 * (forward[j] + backward[j]);
    } else if (options.symmetrize == Symmetrize::max) {
      for (Index j = 0; j < i; ++j) forward[j] = std::max(forward[j], backward[j]);
    } else {
      for (Index j = 0; j < i; ++j) forward[j] = std::min(forward[j], backward[j]);
    }
    double sum = 0.0;
    for (Index j = 0; j < i; ++j) {
      const double w = forward[j];
      smallest = std::min(smallest, w);
      store(i, j, w);
      degree[j] += w;
      sum += w;
    }
    degree[i] = sum;
  }
  return smallest >= 0.0;
}

// M = L + s·uuᵀ of a pack in the lower triangle of `a` (rows of `stride`), its unit null vectors u in
// `null`, and the shift s in every lane. Lanes without a connected graph hold the unit matrix.
template <class Scalar>
void read_pack(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options, double shift,
               Lanes* a, Index stride, Lanes* null, Kind* kinds, FiedlerWorkspace& workspace) {
  const Index n = pack.front().rows();
  for (Index lane = 0; lane < kPackWidth; ++lane) {
    const Lane weights(a, lane);
    const Lane degree(null, lane);
    Kind kind = Kind::disconnected;
    if (lane < static_cast<Index>(pack.size())) {
      const bool graph =
          read_weights(pack[lane], options, workspace.row, degree,
                       [&](Index i, Index j, double w) { weights[i * stride + j] = w; });
      kind = !graph ? Kind::signed_weights
             : is_connected(n, workspace.queue,
                            [&](Index i, Index j) { return weights[i * stride + j]; })
                 ? Kind::connected
                 : Kind::disconnected;
      kinds[lane] = kind;
    }
    if (kind == Kind::connected) continue;
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < i; ++j) weights[i * stride + j] = 1.0;
      degree[i] = static_cast<double>(n - 1);
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
        Lanes& entry = a[i * stride + j];
        entry = entry * scale * null[j] + lift / null[j];
      }
      a[i * stride + i] = 1.0 + lift / null[i];
    }
    const Lanes length = 1.0 / square_root(sum);
    for (Index i = 0; i < n; ++i) null[i] = length / null[i];
    return;
  }
  const double nodes = static_cast<double>(n);
  const Lanes lift = shift * sum / (nodes * nodes);  // u_i² s, u constant
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) a[i * stride + j] = lift - a[i * stride + j];
    a[i * stride + i] = null[i] + lift;
  }
  for (Index i = 0; i < n; ++i) null[i] = broadcast(1.0 / std::sqrt(nodes));
}

// λ2 of a pack from the tridiagonal form of L + s·uuᵀ, with s above λ2 so that λ2 is its smallest
// eigenvalue: λ2 <= n/(n−1)·min degree < 2·mean degree, and <= 2 when normalized.
template <class Scalar>
Lanes by_tridiagonal(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options, Kind* kinds,
                     FiedlerWorkspace& workspace) {
  const Index n = pack.front().rows();
  Lanes* a = lane_buffer(workspace.matrix, n * n);
  Lanes* diagonal = lane_buffer(workspace.vectors, 7 * n);
  Lanes* beside = diagonal + n;
  Lanes* null = diagonal + 2 * n;
  read_pack(pack, options, 2.0, a, n, null, kinds, workspace);
  tridiagonalize(a, n, diagonal, beside, diagonal + 3 * n);
  Lanes norm{};
  for (Index i = 0; i < n; ++i) norm = larger(norm, diagonal[i]);
  for (Index i = 0; i + 1 < n; ++i) beside[i] *= beside[i];
  return smallest_eigenvalue(diagonal, beside, n, Lanes{}, norm);
}

// λ2 of a pack from the Cholesky factors of L + s·uuᵀ, s the mean degree (1 when normalized).
template <class Scalar>
Lanes by_cholesky(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                  double tolerance, Kind* kinds, FiedlerWorkspace& workspace) {
  const Index n = pack.front().rows();
  const Index padded = padded_to_tile(n);
  Lanes* a = lane_buffer(workspace.matrix, padded * padded);
  Lanes* null = lane_buffer(workspace.vectors, 3 * padded + kLanczosScratch);
  Lanes* inverse = null + padded;
  Lanes* x = inverse + padded;
  Lanes* scratch = x + padded;
  Lanes* basis = lane_buffer(workspace.basis, (kMostLanczosSteps + 2) * n);
  read_pack(pack, options, 1.0, a, padded, null, kinds, workspace);
  for (Index i = n; i < padded; ++i) {
    for (Index j = 0; j < i; ++j) a[i * padded + j] = Lanes{};
    a[i * padded + i] = broadcast(1.0);
  }
  factorize(a, padded, inverse);
  return inverse_lanczos(n, null, tolerance, basis, scratch, [&](Lanes* vector) {
    std::copy(vector, vector + n, x);
    std::fill(x + n, x + padded, Lanes{});
    solve(a, padded, inverse, x);
    std::copy(x, x + n, vector);
  });
}

// λ2 of one large matrix: the same as by_cholesky, in blocks that stay in the cache.
template <class Scalar>
double by_blocks(const MatrixView<Scalar>& attention, const GraphOptions& options, double tolerance,
                 FiedlerWorkspace& workspace) {
  const Index n = attention.rows();
  const double nodes = static_cast<double>(n);
  Eigen::Map<Eigen::MatrixXd> m(workspace.matrix.resize(n * n), n, n);
  double* vectors = workspace.vectors.resize(n + kLanczosScratch * kPackWidth);
  Eigen::Map<Eigen::VectorXd> null(vectors, n);
  const bool graph = read_weights(attention, options, workspace.row, null,
                                  [&](Index i, Index j, double w) { m(j, i) = -w; });
  if (!graph) return fiedler_value_direct(attention, options, workspace.laplacian);
  if (!is_connected(n, workspace.queue, [&](Index i, Index j) { return -m(j, i); })) return 0.0;
  const double sum = null.sum();
  if (options.normalized) {
    null = null.cwiseSqrt() / std::sqrt(sum);
    for (Index i = 0; i < n; ++i) {
      m.col(i).head(i) = m.col(i).head(i).array() / (sum * null.head(i).array() * null[i]) +
                         null.head(i).array() * null[i];
      m(i, i) = 1.0 + null[i] * null[i];
    }
  } else {
    const double lift = sum / (nodes * nodes);
    for (Index i = 0; i < n; ++i) {
      m.col(i).head(i).array() += lift;
      m(i, i) = null[i] + lift;
    }
    null.setConstant(1.0 / std::sqrt(nodes));
  }
  Eigen::Ref<Eigen::MatrixXd> in_place(m);
  const Eigen::LLT<Eigen::Ref<Eigen::MatrixXd>, Eigen::Upper> factor(in_place);
  if (factor.info() != Eigen::Success) {
    return fiedler_value_direct(attention, options, workspace.laplacian);
  }

  Lanes* alpha = reinterpret_cast<Lanes*>(vectors + (n + 7) / 8 * 8);
  Lanes* beta = alpha + (kMostLanczosSteps + 1);
  Lanes* scratch = beta + (kMostLanczosSteps + 1);
  Eigen::Map<Eigen::MatrixXd> basis(workspace.basis.resize((kMostLanczosSteps + 2) * n), n,
                                    kMostLanczosSteps + 2);
  basis.col(0) = null;
  for (Index i = 0; i < n; ++i) basis(i, 1) = start_entry(i);
  basis.col(1) -= null.dot(basis.col(1)) * null;
  basis.col(1).normalize();
  Eigen::Matrix<double, kMostLanczosSteps + 2, 1> along;
  for (Index j = 0; j < kMostLanczosSteps; ++j) {
    const auto q = basis.col(j + 1);
    auto next = basis.col(j + 2);
    next = q;
    factor.solveInPlace(next);
    const double a = next.dot(q);
    alpha[j] = broadcast(a);
    next -= a * q;
    if (j > 0) next -= beta[j - 1][0] * basis.col(j);
    along.head(j + 2).noalias() = basis.leftCols(j + 2).transpose() * next;
    next.noalias() -= basis.leftCols(j + 2) * along.head(j + 2);
    const double b = next.norm();
    beta[j] = broadcast(b);
    if (is_inspected(j) || b <= 1e-10 * alpha[0][0]) {
      const RitzValue ritz = largest_ritz_value(alpha, beta, j + 1, tolerance, scratch);
      if (ritz.converged[0] != 0) return std::max(0.0, 1.0 / ritz.theta[0]);
    }
    if (b == 0.0) break;
    next /= b;
  }
  return fiedler_value_direct(attention, options, workspace.laplacian);
}

}  // namespace

Index fiedler_pack_width(Index smallest) { return smallest < kSmallestBlocked ? kPackWidth : 1; }

template <class Scalar>
double fiedler_value_direct(const MatrixView<Scalar>& attention, const GraphOptions& options,
                            LaplacianWorkspace& workspace) {
  if (attention.rows() == 1) return 0.0;
  double smallest[2];
  laplacian_eigenvalues(attention, options, 2, smallest, workspace);
  return smallest[1];
}

template <class Scalar>
void fiedler_values(std::span<const MatrixView<Scalar>> pack, const GraphOptions& options,
                    Precision precision, double* out, FiedlerWorkspace& workspace) {
  const double tolerance = precision == Precision::exact ? 1e-11 : 1e-7;
  const Index n = pack.front().rows();
  const Index count = static_cast<Index>(pack.size());
  if (n < 3) {
    for (Index k = 0; k < count; ++k) {
      out[k] = fiedler_value_direct(pack[k], options, workspace.laplacian);
    }
    return;
  }
  if (n >= kSmallestBlocked) {
    for (Index k = 0; k < count; ++k) out[k] = by_blocks(pack[k], options, tolerance, workspace);
    return;
  }
  Kind kinds[kPackWidth];
  const Lanes values = n <= kLargestTridiagonal ? by_tridiagonal(pack, options, kinds, workspace)
                                                : by_cholesky(pack, options, tolerance, kinds, workspace);
  for (Index k = 0; k < count; ++k) {
    if (kinds[k] == Kind::disconnected) {
      out[k] = 0.0;
    } else if (kinds[k] == Kind::signed_weights || !(values[k] >= 0.0)) {
      out[k] = fiedler_value_direct(pack[k], options, workspace.laplacian);
    } else {
      out[k] = values[k];
    }
  }
}

template <class Scalar>
void fiedler_vector(const MatrixView<Scalar>& attention, const GraphOptions& options, double* out,
                    LaplacianWorkspace& workspace) {
  const Index n = attention.rows();
  if (n == 1) {
    out[0] = kNaN;
    return;
  }
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
  // The null vector is lifted above the spectrum, so that the smallest eigenvalue left is λ2 and its
  // vector is orthogonal to the null vector even where λ2 is 0 too.
  // With negative weights it need not be the smallest, and the second eigenvector is taken as it is.
  const double lift = 2.0 * workspace.weights.cwiseAbs().rowwise().sum().maxCoeff() + 1.0;
  if (graph) workspace.weights += lift * null * null.transpose();
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(workspace.weights);
  vector = solver.eigenvectors().col(graph ? 0 : 1);
  if (graph) vector -= null.dot(vector) * null;
  vector.normalize();
  // Entries that tie in exact arithmetic differ by rounding; the first within rounding of the largest
  // decides the sign.
  const double largest = vector.cwiseAbs().maxCoeff();
  for (Index i = 0; i < n; ++i) {
    if (std::abs(vector[i]) < largest * (1.0 - 1e-9)) continue;
    if (vector[i] < 0.0) vector = -vector;
    break;
  }
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                             \
  template void fiedler_values<Scalar>(std::span<const MatrixView<Scalar>>, const GraphOptions&,  \
                                       Precision, double*, FiedlerWorkspace&);                    \
  template double fiedler_value_direct<Scalar>(const MatrixView<Scalar>&, const GraphOptions&,    \
                                               LaplacianWorkspace&);                              \
  template void fiedler_vector<Scalar>(const MatrixView<Scalar>&, const GraphOptions&, double*,   \
                                       LaplacianWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
