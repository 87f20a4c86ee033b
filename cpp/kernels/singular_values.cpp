// SPDX-License-Identifier: MIT
#include "kernels/singular_values.h"

#include <Eigen/SVD>
#include <cmath>

#include "kernels/base/widen.h"

namespace attnscope {

void singular_values_in_place(double* matrix, Index n, Index ld, double* out,
                              SingularValuesWorkspace&) {
  using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<Rows, 0, Eigen::OuterStride<>> rows(matrix, n, n, Eigen::OuterStride<>(ld));
  const Eigen::BDCSVD<Eigen::MatrixXd> svd{Eigen::MatrixXd(rows)};
  Eigen::Map<Eigen::VectorXd>(out, n) = svd.singularValues();
}

template <class Scalar>
void singular_values(const MatrixView<Scalar>& matrix, double* out,
                     SingularValuesWorkspace& workspace) {
  const Index n = matrix.rows();
  workspace.matrix.resize(static_cast<std::size_t>(n * n));
  const double scale = widen(matrix, workspace.matrix.data(), n);
  singular_values_in_place(workspace.matrix.data(), n, n, out, workspace);
  if (scale != 1.0) {
    for (Index i = 0; i < n; ++i) out[i] /= scale;
  }
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                      \
  template void singular_values<Scalar>(const MatrixView<Scalar>&, double*, \
                                        SingularValuesWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
