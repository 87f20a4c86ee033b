// SPDX-License-Identifier: MIT
#include "kernels/participation_ratio.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/base/widen.h"

namespace attnscope {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsMap = Eigen::Map<Rows>;

double ratio(double sum, double sum_of_squares) {
  if (sum_of_squares == 0.0) return std::numeric_limits<double>::quiet_NaN();
  return sum * sum / sum_of_squares;
}

template <class Scalar>
RowsMap widened(const MatrixView<Scalar>& matrix, ParticipationRatioWorkspace& workspace) {
  const Index n = matrix.rows();
  workspace.matrix.resize(static_cast<std::size_t>(n * n));
  // Every ratio here is the same for c·A, so the scale that keeps powers in range needs no undoing.
  widen(matrix, workspace.matrix.data(), n);
  return RowsMap(workspace.matrix.data(), n, n);
}

}  // namespace

template <class Scalar>
double participation_ratio_singular(const MatrixView<Scalar>& matrix,
                                    ParticipationRatioWorkspace& workspace) {
  const RowsMap a = widened(matrix, workspace);
  const Eigen::MatrixXd gram = a.transpose() * a;
  return ratio(a.squaredNorm(), gram.squaredNorm());
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
  Eigen::EigenSolver<Eigen::MatrixXd> solver(a, false);
  // The transpose has the same eigenvalues and takes the QR iteration another way.
  if (solver.info() != Eigen::Success) solver.compute(a.transpose(), false);
  if (solver.info() != Eigen::Success) {
    throw std::runtime_error("participation_ratio: the eigenvalues of a matrix did not converge");
  }
  for (Index i = 0; i < n; ++i) add(std::abs(solver.eigenvalues()[i]));
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

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                             \
  template double participation_ratio_singular<Scalar>(const MatrixView<Scalar>&,                 \
                                                       ParticipationRatioWorkspace&);             \
  template double participation_ratio_eigen<Scalar>(const MatrixView<Scalar>&,                    \
                                                    ParticipationRatioWorkspace&);                \
  template double participation_ratio_laplacian<Scalar>(const MatrixView<Scalar>&,                \
                                                        ParticipationRatioWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
