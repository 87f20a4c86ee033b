// SPDX-License-Identifier: MIT
#include "kernels/graphs/fiedler.h"

#include <gtest/gtest.h>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

double one_value(const MatrixView<double>& a, const GraphOptions& options) {
  FiedlerWorkspace workspace;
  double value = -1.0;
  fiedler_values(std::span<const MatrixView<double>>(&a, 1), options, Precision::exact, &value,
                 workspace);
  return value;
}

TEST(FiedlerValue, CausalStarIsHalf) {
  RowMatrix<double> a = RowMatrix<double>::Zero(12, 12);
  a.col(0).setOnes();
  LaplacianWorkspace workspace;
  EXPECT_NEAR(one_value(view(a), {}), 0.5, 1e-13);
  GraphOptions larger;
  larger.symmetrize = Symmetrize::max;
  EXPECT_NEAR(one_value(view(a), larger), 1.0, 1e-13);
}

TEST(FiedlerValue, DisconnectedIsExactlyZero) {
  const RowMatrix<double> identity = RowMatrix<double>::Identity(7, 7);
  LaplacianWorkspace workspace;
  EXPECT_EQ(one_value(view(identity), {}), 0.0);
  EXPECT_EQ(one_value(view(RowMatrix<double>(RowMatrix<double>::Ones(1, 1))), {}), 0.0);
}

TEST(FiedlerVector, SatisfiesItsEquationAndSign) {
  for (bool causal : {true, false}) {
    for (bool normalized : {true, false}) {
      const RowMatrix<double> a = testing::random_attention(20, causal, 3);
      GraphOptions options;
      options.normalized = normalized;
      LaplacianWorkspace workspace;
      const double value = one_value(view(a), options);
      Eigen::VectorXd vector(20);
      FiedlerWorkspace fiedler;
      fiedler_vector(view(a), options, vector.data(), fiedler);
      graph_weights(view(a), options, workspace);
      laplacian_from_weights(normalized, workspace);
      EXPECT_LT((workspace.weights * vector - value * vector).norm(), 1e-12);
      EXPECT_NEAR(vector.norm(), 1.0, 1e-12);
      Index at = 0;
      vector.cwiseAbs().maxCoeff(&at);
      EXPECT_GT(vector[at], 0.0);
    }
  }
}

TEST(FiedlerVector, OfTwoIslandsTellsThemApart) {
  // Constant on each, and orthogonal to the constant vector: of 3 and 4 tokens 4 and −3 over √84.
  RowMatrix<double> a = RowMatrix<double>::Zero(7, 7);
  a(1, 0) = a(2, 1) = 0.5;
  a(4, 3) = a(5, 4) = a(6, 3) = a(6, 5) = 0.25;
  Eigen::VectorXd vector(7);
  FiedlerWorkspace workspace;
  fiedler_vector(view(a), {}, vector.data(), workspace);
  for (Index i = 0; i < 7; ++i)
    EXPECT_NEAR(vector[i], (i < 3 ? 4.0 : -3.0) / std::sqrt(84.0), 1e-14);
  Eigen::VectorXd pair(2);
  fiedler_vector(view(RowMatrix<double>(a.topLeftCorner(2, 2))), {}, pair.data(), workspace);
  EXPECT_NEAR(std::abs(pair[0]), std::sqrt(0.5), 1e-15);
  EXPECT_NEAR(pair[0] + pair[1], 0.0, 1e-15);
}

TEST(FiedlerVector, OneTokenIsNaN) {
  const RowMatrix<double> single = RowMatrix<double>::Ones(1, 1);
  FiedlerWorkspace workspace;
  double out = 0.0;
  fiedler_vector(view(single), {}, &out, workspace);
  EXPECT_TRUE(std::isnan(out));
}

}  // namespace
}  // namespace attnscope
