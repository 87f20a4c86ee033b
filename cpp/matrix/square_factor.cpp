// SPDX-License-Identifier: MIT
#include "matrix/square_factor.h"

#include <Eigen/QR>
#include <algorithm>

namespace attnscope {

void square_factor(const double* matrix, Index rows, Index columns, double* out) {
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Index r = std::min(rows, columns);
  const Eigen::Map<const RowMajor> source(matrix, rows, columns);
  const Eigen::HouseholderQR<Eigen::MatrixXd> factors(
      rows <= columns ? Eigen::MatrixXd(source.transpose()) : Eigen::MatrixXd(source));
  Eigen::Map<RowMajor> lower(out, r, r);
  lower.setZero();
  lower.triangularView<Eigen::Lower>() =
      factors.matrixQR().topRows(r).triangularView<Eigen::Upper>().transpose();
}

}  // namespace attnscope
