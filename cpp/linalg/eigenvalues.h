// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>

namespace attnscope {

// Eigen's dense solvers, compiled in one file: each takes seconds wherever it is instantiated.

// The eigenvalues of a symmetric matrix, ascending; the lower triangle is read.
Eigen::VectorXd symmetric_eigenvalues(const Eigen::MatrixXd& matrix);

// The same of a tridiagonal matrix, from its diagonal and the entries beside it.
Eigen::VectorXd symmetric_eigenvalues(const Eigen::VectorXd& diagonal,
                                      const Eigen::VectorXd& beside);

// The same of a full matrix, with the unit eigenvectors, a column each.
struct SymmetricEigen {
  Eigen::VectorXd values;
  Eigen::MatrixXd vectors;
};
SymmetricEigen symmetric_eigen(const Eigen::MatrixXd& matrix);

// |λ| of every eigenvalue of a square matrix, in no order; false where the iteration did not
// converge.
bool eigenvalue_magnitudes(const Eigen::MatrixXd& matrix, Eigen::VectorXd& out);

}  // namespace attnscope
