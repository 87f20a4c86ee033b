// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include <gtest/gtest.h>

#include <functional>

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

// Two workers take the parts in turns, the last part first.
SharedWork in_turns() {
  return {2, [](Index parts, const std::function<void(Index part, int worker)>& work) {
            for (Index part = parts - 1; part >= 0; --part) work(part, static_cast<int>(part % 2));
          }};
}

// (Σe)²/Σe² from AᵀA.
double expected_ratio(const RowMatrix<double>& a) {
  const double squares = a.squaredNorm();
  return squares * squares / (a.transpose() * a).squaredNorm();
}

TEST(ParticipationRatio, PartsOfALargeMapAddUpInAnyOrder) {
  ParticipationRatioWorkspace workspace;
  for (const Index n : {150, 330}) {
    for (const bool causal : {true, false}) {
      const RowMatrix<double> a = testing::random_attention(n, causal, 2, 2.0);
      const double unshared = participation_ratio_singular(view(a), workspace);
      EXPECT_NEAR(unshared, expected_ratio(a), 1e-12 * unshared) << n << " " << causal;
      EXPECT_EQ(participation_ratio_singular(view(a), workspace, in_turns()), unshared);
    }
  }
}

TEST(ParticipationRatio, FastHoldsItsBoundAtAnyScale) {
  ParticipationRatioWorkspace workspace;
  for (const Index n : {97, 150, 200, 330}) {
    for (const bool causal : {true, false}) {
      for (const double scale : {1.0, 0x1p-30, 0x1p70}) {
        const RowMatrix<double> a = scale * testing::random_attention(n, causal, 2, 2.0);
        double unshared = 0.0, shared = 0.0;
        ASSERT_TRUE(fast_participation_ratio(view(a), &unshared, workspace));
        const double expected = expected_ratio(a);
        EXPECT_NEAR(unshared, expected, 1e-5 * expected) << n << " " << causal << " " << scale;
        ASSERT_TRUE(fast_participation_ratio(view(a), &shared, workspace, in_turns()));
        EXPECT_EQ(shared, unshared);
      }
    }
  }
}

TEST(ParticipationRatio, FastRefusesEntriesOfTwoSigns) {
  ParticipationRatioWorkspace workspace;
  constexpr Index n = 200;
  for (const Index at : {Index{0}, Index{77}, n - 1}) {
    RowMatrix<double> a = testing::random_attention(n, false, 2);
    a(at, n - 1 - at) = -1e-3;
    double ratio = -1.0;
    EXPECT_FALSE(fast_participation_ratio(view(a), &ratio, workspace)) << at;
    EXPECT_EQ(ratio, -1.0);
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
