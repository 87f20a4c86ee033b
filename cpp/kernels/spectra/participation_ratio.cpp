// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "linalg/eigenvalues.h"
#include "linalg/gram.h"
#include "matrix/padded_vectors.h"
#include "matrix/square_factor.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsMap = Eigen::Map<Rows>;

double ratio(double sum, double sum_of_squares) {
  if (sum_of_squares == 0.0) return kNaN;
  return sum * sum / sum_of_squares;
}

template <class Scalar>
RowsMap widened(const MatrixView<Scalar>& matrix, ParticipationRatioWorkspace& workspace) {
  const Index n = matrix.rows();
  double* data = workspace.matrix.resize(n * n);
  // Every ratio here is the same for c·A, so the scale that keeps powers in range needs no undoing.
  widen(matrix, data, n);
  return RowsMap(data, n, n);
}

// Copies row i up to column `end` to float64 and returns Σ x² of it and its largest |x|.
template <class Scalar>
double copy_row(const MatrixView<Scalar>& matrix, Index i, Index end, double* to, double& largest) {
  widen_row(matrix, i, end, to);
  const Lanes* lanes = reinterpret_cast<const Lanes*>(to);
  Lanes squares{}, most{};
  Index j = 0;
  for (; j + kPackWidth <= end; j += kPackWidth) {
    const Lanes x = lanes[j / kPackWidth];
    squares += x * x;
    most = larger(most, magnitude(x));
  }
  double sum = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) {
    sum += squares[lane];
    largest = std::max(largest, most[lane]);
  }
  for (; j < end; ++j) {
    sum += to[j] * to[j];
    largest = std::max(largest, std::abs(to[j]));
  }
  return sum;
}

}  // namespace

template <class Scalar>
double participation_ratio_singular(const MatrixView<Scalar>& matrix,
                                    ParticipationRatioWorkspace& workspace) {
  if (matrix.rows() != matrix.cols()) {
    const Index r = std::min(matrix.rows(), matrix.cols());
    double* rectangle = workspace.rectangle.resize(matrix.rows() * matrix.cols());
    widen(matrix, rectangle, matrix.cols());
    double* factor = workspace.factor.resize(r * r);
    square_factor(rectangle, matrix.rows(), matrix.cols(), factor);
    return participation_ratio_singular(matrix_view(static_cast<const double*>(factor), r, r, 1),
                                        workspace);
  }
  const Index n = matrix.rows();
  // Rows on whole vectors, and no power of two apart.
  const Index ld = ((n + 7) / 8 | 1) * 8;
  double* a = workspace.matrix.resize(n * ld);
  const bool triangular = is_causal(matrix);
  double total = 0.0;
  double largest = 0.0;
  for (Index i = 0; i < n; ++i) {
    const Index end = triangular ? i + 1 : n;
    const Index zeros = std::min(ld, end + kPanel);
    total += copy_row(matrix, i, end, a + i * ld, largest);
    std::fill(a + i * ld + end, a + i * ld + zeros, 0.0);
  }
  if (const double scale = safe_scale(largest); scale != 1.0) {
    total = 0.0;
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < (triangular ? i + 1 : n); ++j) {
        a[i * ld + j] *= scale;
        total += a[i * ld + j] * a[i * ld + j];
      }
    }
  }
  // Of AAᵀ, whose rows lie in memory as A's do, and which has the norm of AᵀA.
  double* gram = workspace.gram.resize(panel_offset(panels_of(n)));
  panel_gram(a, ld, n, triangular, gram, workspace.tile);
  double squares = 0.0;
  for (Index s = 0; s < panels_of(n); ++s) {
    const double* panel = gram + panel_offset(s);
    const double* block = panel + s * kPanel * kPanel;
    // Those above the diagonal block stand for their mirror images too.
    squares += 2.0 * inner_product(panel, panel, s * kPanel * kPanel);
    squares += inner_product(block, block, kPanel * kPanel);
  }
  return ratio(total, squares);
}

template <class Scalar>
double participation_ratio_eigen(const MatrixView<Scalar>& matrix,
                                 ParticipationRatioWorkspace& workspace) {
  const RowsMap a = widened(matrix, workspace);
  const Index n = matrix.rows();
  double sum = 0.0;
  double squares = 0.0;
  const auto add = [&](double magnitude) {
    sum += magnitude;
    squares += magnitude * magnitude;
  };
  if (n == 1 || is_causal(matrix)) {
    for (Index i = 0; i < n; ++i) add(std::abs(a(i, i)));
    return ratio(sum, squares);
  }
  Eigen::VectorXd magnitudes;
  if (!eigenvalue_magnitudes(a, magnitudes)) {
    throw std::runtime_error("participation_ratio: the eigenvalues of a matrix did not converge");
  }
  for (Index i = 0; i < n; ++i) add(magnitudes[i]);
  return ratio(sum, squares);
}

template <class Scalar>
double participation_ratio_laplacian(const MatrixView<Scalar>& matrix,
                                     ParticipationRatioWorkspace& workspace) {
  const RowsMap a = widened(matrix, workspace);
  const Index n = matrix.rows();
  double trace = 0.0;
  double squares = 0.0;
  for (Index i = 0; i < n; ++i) {
    double degree = 0.0;
    for (Index j = 0; j < n; ++j) {
      if (j == i) continue;
      const double weight = 0.5 * (a(i, j) + a(j, i));
      degree += weight;
      squares += weight * weight;
    }
    trace += degree;
    squares += degree * degree;
  }
  return ratio(trace, squares);
}

ATTNSCOPE_COMPILE(participation_ratio_singular);
ATTNSCOPE_COMPILE(participation_ratio_eigen);
ATTNSCOPE_COMPILE(participation_ratio_laplacian);

}  // namespace attnscope
