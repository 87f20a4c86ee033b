// SPDX-License-Identifier: MIT
#include "linalg/eigenvalues.h"

#include <Eigen/Eigenvalues>

namespace attnscope {

Eigen::VectorXd symmetric_eigenvalues(const Eigen::MatrixXd& matrix) {
  return Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(matrix, Eigen::EigenvaluesOnly)
      .eigenvalues();
}

Eigen::VectorXd symmetric_eigenvalues(const Eigen::VectorXd& diagonal,
                                      const Eigen::VectorXd& beside) {
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver;
  solver.computeFromTridiagonal(diagonal, beside, Eigen::EigenvaluesOnly);
  return solver.eigenvalues();
}

SymmetricEigen symmetric_eigen(const Eigen::MatrixXd& matrix) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(matrix);
  return {solver.eigenvalues(), solver.eigenvectors()};
}

bool eigenvalue_magnitudes(const Eigen::MatrixXd& matrix, Eigen::VectorXd& out) {
  Eigen::EigenSolver<Eigen::MatrixXd> solver(matrix, false);
  // The transpose has the same eigenvalues and takes the QR iteration another way.
  if (solver.info() != Eigen::Success) solver.compute(matrix.transpose(), false);
  if (solver.info() != Eigen::Success) return false;
  out = solver.eigenvalues().cwiseAbs();
  return true;
}

}  // namespace attnscope
