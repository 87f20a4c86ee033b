// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include <gtest/gtest.h>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

TEST(ParticipationRatio, SingularEqualsItsSpectrum) {
  ParticipationRatioWorkspace workspace;
  for (const Index n : {1, 2, 3, 4, 5, 11, 12, 13, 24, 37, 70}) {
    for (const bool causal : {true, false}) {
      const RowMatrix<double> a = testing::random_attention(n, causal, 2, 2.0);
      const Eigen::VectorXd e = testing::singular_values(a).array().square();
      EXPECT_NEAR(participation_ratio_singular(view(a), workspace),
                  e.sum() * e.sum() / e.squaredNorm(), 1e-11 * double(n))
          << "n = " << n;
    }
  }
}

TEST(ParticipationRatio, UniformCausalEigenvaluesAreHarmonic) {
  ParticipationRatioWorkspace workspace;
  constexpr Index n = 20;
  double harmonic = 0.0;
  double squares = 0.0;
  for (int k = 1; k <= n; ++k) {
    harmonic += 1.0 / k;
    squares += 1.0 / (double(k) * k);
  }
  EXPECT_NEAR(participation_ratio_eigen(view(testing::uniform_causal(n)), workspace),
              harmonic * harmonic / squares, 1e-12);
}

TEST(ParticipationRatio, GraphsOfKnownSpectrum) {
  ParticipationRatioWorkspace workspace;
  constexpr Index n = 9;
  EXPECT_NEAR(participation_ratio_laplacian(view(testing::complete(n)), workspace), n - 1, 1e-12);
  EXPECT_NEAR(participation_ratio_laplacian(view(testing::star(n)), workspace),
              (2.0 * n - 2.0) * (2.0 * n - 2.0) / (n * n + n - 2.0), 1e-12);
  EXPECT_TRUE(std::isnan(participation_ratio_laplacian(
      view(RowMatrix<double>(RowMatrix<double>::Ones(1, 1))), workspace)));
}

}  // namespace
}  // namespace attnscope
