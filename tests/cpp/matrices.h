// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cmath>
#include <random>

#include "matrix/matrix_view.h"

// Small matrices with known answers, seeded random attention maps, and oracles, for the kernel
// tests.
namespace attnscope::testing {

template <class Scalar>
using RowMatrix = Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class Scalar>
MatrixView<Scalar> view(const RowMatrix<Scalar>& matrix) {
  return matrix_view(matrix.data(), matrix.rows(), matrix.cols(), Index{1});
}

// Softmax rows of seeded Gaussian logits times `sharpness`, causal or full.
inline RowMatrix<double> random_attention(Index n, bool causal, unsigned seed,
                                          double sharpness = 1.0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    const Index end = causal ? i + 1 : n;
    double sum = 0.0;
    for (Index j = 0; j < end; ++j) sum += a(i, j) = std::exp(sharpness * normal(generator));
    a.row(i) /= sum;
  }
  return a;
}

// What a mask [n, n], rows one behind the other, lets each query see.
inline Support masked(const bool* mask, Index n) {
  return {.kind = Support::Kind::mask, .mask = mask, .mask_row_stride = n, .mask_column_stride = 1};
}

// Weighted adjacency matrices of simple graphs, every edge of weight `w`.
inline RowMatrix<double> star(Index n, double w = 1.0) {
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  for (Index i = 1; i < n; ++i) a(i, 0) = a(0, i) = w;
  return a;
}

inline RowMatrix<double> complete(Index n, double w = 1.0) {
  RowMatrix<double> a = RowMatrix<double>::Constant(n, n, w);
  a.diagonal().setZero();
  return a;
}

inline RowMatrix<double> path(Index n, double w = 1.0) {
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i + 1 < n; ++i) a(i, i + 1) = a(i + 1, i) = w;
  return a;
}

inline RowMatrix<double> cycle(Index n, double w = 1.0) {
  RowMatrix<double> a = path(n, w);
  a(0, n - 1) = a(n - 1, 0) = w;
  return a;
}

// Row i gives 1/(i+1) to each of its visible keys.
inline RowMatrix<double> uniform_causal(Index n) {
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) a.row(i).head(i + 1).setConstant(1.0 / static_cast<double>(i + 1));
  return a;
}

// What Eigen's dense solvers say; compiled in one file, because each takes seconds wherever it is
// instantiated.

// The eigenvalues of a symmetric matrix, ascending.
Eigen::VectorXd eigenvalues(const Eigen::MatrixXd& matrix);

// Those of a symmetric tridiagonal matrix.
Eigen::VectorXd tridiagonal_eigenvalues(const Eigen::VectorXd& diagonal,
                                        const Eigen::VectorXd& beside);

// The singular values of any matrix, descending.
Eigen::VectorXd singular_values(const Eigen::MatrixXd& matrix);

}  // namespace attnscope::testing
