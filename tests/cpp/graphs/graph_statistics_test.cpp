// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "graphs/threshold_levels.h"
#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

template <class Scalar>
std::vector<GraphStatistics> statistics(const RowMatrix<Scalar>& a,
                                        const std::vector<double>& thresholds) {
  std::vector<GraphStatistics> results(thresholds.size());
  GraphStatisticsWorkspace workspace;
  const auto count = static_cast<Index>(thresholds.size());
  graph_statistics(view(a), thresholds.data(), count, results.data(), workspace);
  finish_graph_statistics(workspace);
  return results;
}

TEST(GraphStatistics, StarAtItsOwnWeightAndAbove) {
  constexpr Index n = 9;
  const auto at = statistics(testing::star(n, 0.25), {0.5, 0.25});
  EXPECT_EQ(at[0].components, n);
  EXPECT_EQ(at[1].components, 1);
  EXPECT_EQ(at[0].fiedler_value, 0.0);
  EXPECT_NEAR(at[1].fiedler_value, 1.0, 1e-12);
  EXPECT_NEAR(at[1].laplacian_gap, 0.0, 1e-12);
  EXPECT_EQ(at[1].hub_share, 1.0);
  EXPECT_EQ(at[1].centralization, 1.0);
  EXPECT_EQ(at[1].star_likeness, 1.0);
  EXPECT_EQ(at[0].gini, 0.0);
  EXPECT_TRUE(at[1].effective);
}

TEST(GraphStatistics, DegreesOfAStar) {
  // Eight leaves of degree 1 and a hub of 8, which alone is attended to, by itself too.
  RowMatrix<double> a = RowMatrix<double>::Zero(9, 9);
  a.col(0).setConstant(0.25);
  const auto at = statistics(a, {0.25});
  EXPECT_NEAR(at[0].density, 8.0 / 36.0, 1e-15);
  EXPECT_NEAR(at[0].gini, 7.0 / 18.0, 1e-15);
  EXPECT_NEAR(at[0].degree_variance, 392.0 / 81.0, 1e-14);
  EXPECT_NEAR(at[0].in_degree_gini, 8.0 / 9.0, 1e-15);
  EXPECT_EQ(at[0].in_degree_centralization, 1.0);
}

std::vector<std::int64_t> strong_components(const RowMatrix<double>& a,
                                            const std::vector<double>& thresholds) {
  std::vector<std::int64_t> results;
  for (const GraphStatistics& of : statistics(a, thresholds))
    results.push_back(of.strong_components);
  return results;
}

TEST(GraphStatistics, StrongComponentsOfRingsAndPaths) {
  constexpr Index n = 70;
  RowMatrix<double> ring = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) ring(i, (i + 1) % n) = 0.5;
  EXPECT_EQ(strong_components(ring, {0.5, 0.6}), (std::vector<std::int64_t>{1, n}));
  // a weak edge: a path above its weight
  ring(40, 41) = 0.2;
  EXPECT_EQ(strong_components(ring, {0.3, 0.2}), (std::vector<std::int64_t>{n, 1}));
  // two rings, joined in one direction, and in both
  RowMatrix<double> rings = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    const Index begin = i < 33 ? 0 : 33, size = i < 33 ? 33 : n - 33;
    rings(i, begin + (i - begin + 1) % size) = 0.5;
  }
  rings(3, 66) = 0.5;
  EXPECT_EQ(strong_components(rings, {0.4}), (std::vector<std::int64_t>{2}));
  rings(50, 20) = 0.5;
  EXPECT_EQ(strong_components(rings, {0.4}), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(strong_components(testing::uniform_causal(9), {0.01}), (std::vector<std::int64_t>{9}));
  EXPECT_EQ(strong_components(RowMatrix<double>::Ones(1, 1), {0.5}),
            (std::vector<std::int64_t>{1}));
}

TEST(GraphStatistics, StrongComponentsAreThoseOfTheClosure) {
  std::mt19937 generator(11);
  std::uniform_real_distribution<double> uniform;
  for (const Index n : {2, 5, 17, 64, 65, 90}) {
    RowMatrix<double> a(n, n);
    for (double& entry : a.reshaped()) entry = uniform(generator);
    const double mean_degree = 1.0 / static_cast<double>(n);
    std::vector<double> thresholds;
    for (int k = 1; k < 8; ++k) thresholds.push_back(1.0 - 0.4 * k * mean_degree);
    const std::vector<std::int64_t> results = strong_components(a, thresholds);
    for (std::size_t t = 0; t < thresholds.size(); ++t) {
      std::vector<std::vector<bool>> reaches(static_cast<std::size_t>(n));
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < n; ++j) {
          reaches[static_cast<std::size_t>(i)].push_back(i == j || a(i, j) >= thresholds[t]);
        }
      }
      for (auto& through : reaches) {
        const auto k = static_cast<std::size_t>(&through - reaches.data());
        for (auto& row : reaches) {
          if (!row[k]) continue;
          for (std::size_t j = 0; j < row.size(); ++j) row[j] = row[j] || through[j];
        }
      }
      std::int64_t expected = 0;
      for (std::size_t i = 0; i < reaches.size(); ++i) {
        bool is_first = true;
        for (std::size_t j = 0; j < i; ++j) is_first &= !(reaches[i][j] && reaches[j][i]);
        expected += is_first ? 1 : 0;
      }
      EXPECT_EQ(results[t], expected) << "n = " << n << ", threshold " << thresholds[t];
    }
  }
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
    const auto at = statistics(a, thresholds);
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
      EXPECT_NEAR(at[k].fiedler_value, values[1], 1e-12 * double(n)) << n << " " << k;
      if (n < 3) continue;
      EXPECT_NEAR(at[k].laplacian_gap, values[2] - values[1], 1e-12 * double(n)) << n << " " << k;
    }
  }
}

TEST(GraphStatistics, FloatEntryBelowAThresholdThatRoundsToItDoesNotReachIt) {
  RowMatrix<float> a = RowMatrix<float>::Zero(3, 3);
  a(1, 0) = 0.1f;
  const double exact = static_cast<double>(0.1f);
  const auto at = statistics(a, {exact, std::nextafter(exact, 1.0), std::nextafter(exact, 0.0)});
  EXPECT_EQ(at[0].components, 2);
  EXPECT_EQ(at[1].components, 3);
  EXPECT_EQ(at[2].components, 2);
}

TEST(GraphStatistics, OneTokenHasNoShares) {
  const auto at = statistics(RowMatrix<double>(RowMatrix<double>::Ones(1, 1)), {0.5});
  EXPECT_EQ(at[0].fiedler_value, 0.0);
  EXPECT_EQ(at[0].components, 1);
  EXPECT_TRUE(std::isnan(at[0].laplacian_gap));
  EXPECT_TRUE(std::isnan(at[0].density));
  EXPECT_EQ(at[0].in_degree_gini, 0.0);
  EXPECT_FALSE(at[0].effective);
}

// Sizes on both sides of a vector, a tile and a byte's 255 rows; more than eight thresholds.
TEST(ThresholdLevels, EveryCountIsThatOfItsDefinition) {
  std::mt19937 generator(2);
  std::uniform_real_distribution<float> uniform;
  std::vector<double> thresholds;
  for (int t = 1; t <= 11; ++t) thresholds.push_back(0.08 * t);
  const auto count = static_cast<Index>(thresholds.size());
  for (const Index n : {1, 2, 7, 8, 9, 31, 33, 64, 65, 130, 300}) {
    RowMatrix<float> a(n, n);
    for (float& entry : a.reshaped()) entry = uniform(generator) < 0.6f ? 0.0f : uniform(generator);
    a.row(n / 2).setConstant(0.0f);
    LevelTable directed, level;
    RowScratch scratch;
    read_levels(view(a), thresholds.data(), count, directed, scratch);
    symmetrize_levels(directed, level);
    std::vector<std::int64_t> in_degree, degree, components;
    count_levels(directed, count, in_degree);
    count_levels(level, count, degree);
    LevelSearch search;
    count_level_components(level, count, search, components);
    for (Index t = 0; t < count; ++t) {
      std::vector<Index> piece(static_cast<std::size_t>(n));
      for (Index i = 0; i < n; ++i) piece[i] = i;
      std::int64_t pieces = n;
      for (Index j = 0; j < n; ++j) {
        std::int64_t into = 0, touching = 0;
        for (Index i = 0; i < n; ++i) {
          const bool edge = i != j && static_cast<double>(a(i, j)) >= thresholds[t];
          const bool back = i != j && static_cast<double>(a(j, i)) >= thresholds[t];
          into += edge;
          touching += edge || back;
          if ((!edge && !back) || piece[i] == piece[j]) continue;
          std::replace(piece.begin(), piece.end(), Index{piece[i]}, Index{piece[j]});
          --pieces;
        }
        ASSERT_EQ(in_degree[t * n + j], into) << n << " " << t << " " << j;
        ASSERT_EQ(degree[t * n + j], touching) << n << " " << t << " " << j;
      }
      ASSERT_EQ(components[t], pieces) << n << " " << t;
    }
  }
}

TEST(ThresholdLevels, BitsAreThoseOfLargerLevels) {
  Level levels[64];
  for (int k = 0; k < 64; ++k) levels[k] = static_cast<Level>(k * 37);
  for (const int above : {0, 1, 100, 127, 128, 200, 254, 255}) {
    const std::uint64_t bits = bits_above(levels, static_cast<Level>(above));
    for (int k = 0; k < 64; ++k) EXPECT_EQ((bits >> k) & 1, levels[k] > above ? 1u : 0u) << above;
  }
}

}  // namespace
}  // namespace attnscope
