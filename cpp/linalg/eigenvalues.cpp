// SPDX-License-Identifier: MIT
#include "linalg/eigenvalues.h"

#include <Eigen/Eigenvalues>
#include <vector>

namespace attnscope {

using Eigen::Index;

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

namespace {

// The indices that remain once those are split off, one after another, whose row or column holds
// only zeros beside the diagonal among what is left.
std::vector<Index> indices_without_isolated(const Eigen::MatrixXd& matrix) {
  const Index n = matrix.rows();
  const auto joins = [&](Index i, Index j) { return i != j && matrix(i, j) != 0.0; };
  std::vector<Index> in_row(n, 0);
  std::vector<Index> in_column(n, 0);
  for (Index j = 0; j < n; ++j) {
    for (Index i = 0; i < n; ++i) {
      in_row[i] += joins(i, j) ? 1 : 0;
      in_column[j] += joins(i, j) ? 1 : 0;
    }
  }
  std::vector<bool> is_left(n, true);
  std::vector<Index> isolated;
  const auto split_off_isolated = [&](Index i) {
    if (!is_left[i] || (in_row[i] != 0 && in_column[i] != 0)) return;
    is_left[i] = false;
    isolated.push_back(i);
  };
  for (Index i = 0; i < n; ++i) split_off_isolated(i);
  while (!isolated.empty()) {
    const Index split = isolated.back();
    isolated.pop_back();
    for (Index i = 0; i < n; ++i) {
      in_row[i] -= joins(i, split) ? 1 : 0;
      in_column[i] -= joins(split, i) ? 1 : 0;
      split_off_isolated(i);
    }
  }
  std::vector<Index> left;
  for (Index i = 0; i < n; ++i) {
    if (is_left[i]) left.push_back(i);
  }
  return left;
}

}  // namespace

bool eigenvalue_magnitudes(const Eigen::MatrixXd& matrix, Eigen::VectorXd& out) {
  // The diagonal entries of isolated indices are eigenvalues. Rounding would make of the zeros of a
  // nilpotent part of n indices numbers of the size of its n-th root.
  out = matrix.diagonal().cwiseAbs();
  const std::vector<Index> left = indices_without_isolated(matrix);
  if (left.empty()) return true;
  const Eigen::MatrixXd coupled = matrix(left, left);
  Eigen::EigenSolver<Eigen::MatrixXd> solver(coupled, false);
  // The transpose has the same eigenvalues and takes the QR iteration another way.
  if (solver.info() != Eigen::Success) solver.compute(coupled.transpose(), false);
  if (solver.info() != Eigen::Success) return false;
  out(left) = solver.eigenvalues().cwiseAbs();
  return true;
}

}  // namespace attnscope
