// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>

// What Eigen's dense solvers say; compiled in one file, because each takes seconds wherever it is instantiated.
namespace attnscope::testing {

// The eigenvalues of a symmetric matrix, ascending.
Eigen::VectorXd eigenvalues(const Eigen::MatrixXd& matrix);

// Those of a symmetric tridiagonal matrix.
Eigen::VectorXd tridiagonal_eigenvalues(const Eigen::VectorXd& diagonal, const Eigen::VectorXd& beside);

// The singular values of any matrix, descending.
Eigen::VectorXd singular_values(const Eigen::MatrixXd& matrix);

}  // namespace attnscope::testing
