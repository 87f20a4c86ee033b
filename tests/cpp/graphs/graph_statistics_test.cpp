// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// Holds what graph_statistics writes for a list of thresholds.
struct Found {
  template <class Scalar>
  Found(const RowMatrix<Scalar>& a, const std::vector<double>& thresholds)
      : numbers(10, std::vector<double>(thresholds.size())),
        components(thresholds.size()),
        effective(new bool[thresholds.size()]) {
    GraphStatisticsWorkspace workspace;
    graph_statistics(view(a), thresholds.data(), static_cast<Index>(thresholds.size()), out(),
                     workspace);
    finish_graph_statistics(workspace);
  }
  GraphStatisticsOut out() {
    return {numbers[0].data(), numbers[1].data(), components.data(), numbers[2].data(),
            numbers[3].data(), numbers[4].data(), numbers[5].data(), numbers[6].data(),
            numbers[7].data(), numbers[8].data(), numbers[9].data(), effective.get()};
  }
  std::vector<std::vector<double>> numbers;
  std::vector<std::int64_t> components;
  std::unique_ptr<bool[]> effective;
};

TEST(GraphStatistics, StarAtItsOwnWeightAndAbove) {
  constexpr Index n = 9;
  Found found(testing::star(n, 0.25), {0.5, 0.25});
  const GraphStatisticsOut at = found.out();
  EXPECT_EQ(at.components[0], n);
  EXPECT_EQ(at.components[1], 1);
  EXPECT_EQ(at.fiedler_value[0], 0.0);
  EXPECT_NEAR(at.fiedler_value[1], 1.0, 1e-12);
  EXPECT_NEAR(at.laplacian_gap[1], 0.0, 1e-12);
  EXPECT_EQ(at.hub_share[1], 1.0);
  EXPECT_EQ(at.centralization[1], 1.0);
  EXPECT_EQ(at.star_likeness[1], 1.0);
  EXPECT_EQ(at.gini[0], 0.0);
  EXPECT_TRUE(at.effective[1]);
}

TEST(GraphStatistics, DegreesOfAStar) {
  // Eight leaves of degree 1 and a hub of 8, which alone is attended to, by itself too.
  RowMatrix<double> a = RowMatrix<double>::Zero(9, 9);
  a.col(0).setConstant(0.25);
  Found found(a, {0.25});
  const GraphStatisticsOut at = found.out();
  EXPECT_NEAR(at.density[0], 8.0 / 36.0, 1e-15);
  EXPECT_NEAR(at.gini[0], 7.0 / 18.0, 1e-15);
  EXPECT_NEAR(at.degree_variance[0], 392.0 / 81.0, 1e-14);
  EXPECT_NEAR(at.in_degree_gini[0], 8.0 / 9.0, 1e-15);
  EXPECT_EQ(at.in_degree_centralization[0], 1.0);
}

TEST(GraphStatistics, SpectraEqualEigenOnGraphsOfEveryDensity) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> uniform;
  std::vector<double> thresholds;
  for (int k = 1; k < 40; ++k) thresholds.push_back(0.025 * k);
  for (Index n = 2; n < 24; ++n) {
    RowMatrix<double> a(n, n);
    for (double& entry : a.reshaped()) entry = uniform(generator);
    a.triangularView<Eigen::Upper>().setZero();
    // One node that all others know, and two islands, at the higher thresholds.
    if (n % 3 == 0) a.col(0).setOnes();
    if (n % 3 == 1) a.block(n / 2, 0, n - n / 2, n / 2) *= 0.5;
    Found found(a, thresholds);
    const GraphStatisticsOut at = found.out();
    for (std::size_t k = 0; k < thresholds.size(); ++k) {
      Eigen::MatrixXd laplacian = Eigen::MatrixXd::Zero(n, n);
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < i; ++j) {
          if (std::max(a(i, j), a(j, i)) < thresholds[k]) continue;
          laplacian(i, j) = laplacian(j, i) = -1.0;
          laplacian(i, i) += 1.0;
          laplacian(j, j) += 1.0;
        }
      }
      const Eigen::VectorXd values = testing::eigenvalues(laplacian);
      EXPECT_NEAR(at.fiedler_value[k], values[1], 1e-12 * double(n)) << n << " " << k;
      if (n < 3) continue;
      EXPECT_NEAR(at.laplacian_gap[k], values[2] - values[1], 1e-12 * double(n)) << n << " " << k;
    }
  }
}

TEST(GraphStatistics, FloatEntryBelowAThresholdThatRoundsToItDoesNotReachIt) {
  RowMatrix<float> a = RowMatrix<float>::Zero(3, 3);
  a(1, 0) = 0.1f;
  const double exact = static_cast<double>(0.1f);
  Found found(a, {exact, std::nextafter(exact, 1.0), std::nextafter(exact, 0.0)});
  EXPECT_EQ(found.components, (std::vector<std::int64_t>{2, 3, 2}));
}

TEST(GraphStatistics, OneTokenHasNoShares) {
  Found found(RowMatrix<double>(RowMatrix<double>::Ones(1, 1)), {0.5});
  const GraphStatisticsOut at = found.out();
  EXPECT_EQ(at.fiedler_value[0], 0.0);
  EXPECT_EQ(at.components[0], 1);
  EXPECT_TRUE(std::isnan(at.laplacian_gap[0]));
  EXPECT_TRUE(std::isnan(at.density[0]));
  EXPECT_EQ(at.in_degree_gini[0], 0.0);
  EXPECT_FALSE(at.effective[0]);
}

}  // namespace
}  // namespace attnscope
