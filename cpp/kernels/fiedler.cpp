// SPDX-License-Identifier: MIT
#include "kernels/fiedler.h"

#include <Eigen/Eigenvalues>
#include <cmath>
#include <limits>

namespace attnscope {

template <class Scalar>
double fiedler_value(const MatrixView<Scalar>& attention, const GraphOptions& options,
                     LaplacianWorkspace& workspace) {
  if (attention.rows() == 1) return 0.0;
  double smallest[2];
  laplacian_eigenvalues(attention, options, 2, smallest, workspace);
  return smallest[1];
}

template <class Scalar>
void fiedler_vector(const MatrixView<Scalar>& attention, const GraphOptions& options, double* out,
                    LaplacianWorkspace& workspace) {
  const Index n = attention.rows();
  if (n == 1) {
    out[0] = std::numeric_limits<double>::quiet_NaN();
    return;
  }
  graph_weights(attention, options, workspace);
  Eigen::VectorXd null = options.normalized ? Eigen::VectorXd(workspace.degree.cwiseSqrt())
                                            : Eigen::VectorXd(Eigen::VectorXd::Ones(n));
  if (null.norm() == 0.0) null.setOnes();  // no edge at all: every vector is a null vector
  null.normalize();
  laplacian_from_weights(options.normalized, workspace);
  // The null vector is lifted above the spectrum, so that the smallest eigenvalue left is λ2 and its
  // vector is orthogonal to the null vector even where λ2 is 0 too.
  const double lift = 2.0 * workspace.weights.cwiseAbs().rowwise().sum().maxCoeff() + 1.0;
  workspace.weights += lift * null * null.transpose();
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(workspace.weights);
  Eigen::Map<Eigen::VectorXd> vector(out, n);
  vector = solver.eigenvectors().col(0);
  vector -= null.dot(vector) * null;
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

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                         \
  template double fiedler_value<Scalar>(const MatrixView<Scalar>&, const GraphOptions&,       \
                                        LaplacianWorkspace&);                                 \
  template void fiedler_vector<Scalar>(const MatrixView<Scalar>&, const GraphOptions&, double*, \
                                       LaplacianWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
