// SPDX-License-Identifier: MIT
// The reduction of one matrix in float32, against the singular values of the matrix itself.
#include "linalg/bidiagonal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

// The singular values of the bidiagonal form of scale·a.
Eigen::VectorXd reduced(const RowMatrix<double>& a, double scale = 1.0) {
  const Index n = a.rows();
  constexpr Index kStride = 3;
  AlignedBuffer entries, scratch;
  // What a larger matrix left must not count.
  double* left = entries.resize((n + 64) * (n + 64));
  std::fill(left, left + (n + 64) * (n + 64), 1e30);
  FloatPanels panels(n, entries);
  for (Index i = 0; i < n; ++i) panels.set_row(i, a.data() + i * n, scale);
  const auto size = static_cast<std::size_t>(n * kStride);
  std::vector<double> diagonal(size, -7.0), superdiagonal(size, -7.0);
  panels.bidiagonalize(diagonal.data(), superdiagonal.data(), kStride, scratch);
  Eigen::MatrixXd b = Eigen::MatrixXd::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    b(i, i) = diagonal[static_cast<std::size_t>(i * kStride)];
    if (i + 1 < n) b(i, i + 1) = superdiagonal[static_cast<std::size_t>(i * kStride)];
  }
  EXPECT_EQ(diagonal.back(), -7.0);
  return testing::singular_values(b);
}

// Both sides of a vector, of a block of vectors and of two, in every instruction set.
TEST(FloatPanels, KeepTheSingularValues) {
  for (const Index n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 25, 33, 48, 95, 96, 97, 113, 193, 210}) {
    for (const bool causal : {true, false}) {
      const RowMatrix<double> a = testing::random_attention(n, causal, 5, 3.0);
      const Eigen::VectorXd expected = testing::singular_values(a);
      const Eigen::VectorXd sigma = reduced(a);
      EXPECT_LT((sigma - expected).cwiseAbs().maxCoeff(), 1e-6 * expected[0])
          << "n = " << n << (causal ? " causal" : " full");
    }
  }
}

TEST(FloatPanels, OfEqualRowsAndOfDiagonalsKeepThemToo) {
  const RowMatrix<double> equal = RowMatrix<double>::Constant(70, 70, 1.0 / 70.0);
  EXPECT_NEAR(reduced(equal)[0], 1.0, 1e-6);
  EXPECT_LT(reduced(equal)[1], 1e-6);
  const RowMatrix<double> identity = RowMatrix<double>::Identity(50, 50);
  EXPECT_LT((reduced(identity).array() - 1.0).abs().maxCoeff(), 1e-6);
  EXPECT_EQ(reduced(RowMatrix<double>::Zero(20, 20)).maxCoeff(), 0.0);
  EXPECT_NEAR(reduced(identity, 0.25)[49], 0.25, 1e-6);
}

}  // namespace
}  // namespace attnscope
