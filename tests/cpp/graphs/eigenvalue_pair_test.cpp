// SPDX-License-Identifier: MIT
// The second and third eigenvalues of large simple graphs, from either solver.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "graphs/block_inverse_lanczos.h"
#include "graphs/preconditioned_pair.h"
#include "matrices.h"

namespace attnscope {
namespace {

using Edge = std::pair<Index, Index>;

LevelTable table(Index n, const std::vector<Edge>& edges) {
  LevelTable level;
  level.resize(n);
  for (const auto& [i, j] : edges) level.row(i)[j] = level.row(j)[i] = 1;
  return level;
}

using Pair = std::optional<EigenvaluePair>;
using Solver = Pair (*)(const SimpleLaplacian&, const std::vector<Index>&);

Pair in_float64(const SimpleLaplacian& laplacian, const std::vector<Index>& one_piece) {
  BlockInverseLanczosWorkspace workspace;
  return block_inverse_lanczos(laplacian, one_piece, workspace);
}

Pair from_float32(const SimpleLaplacian& laplacian, const std::vector<Index>& one_piece) {
  PreconditionedPairWorkspace workspace;
  return preconditioned_pair(laplacian, one_piece, workspace);
}

class EigenvaluePairs : public ::testing::TestWithParam<Solver> {
 protected:
  static Pair pair_of(const LevelTable& level, const std::vector<Index>& nodes,
                      const std::vector<Index>& one_piece = {}) {
    std::vector<double> degree;
    for (const Index i : nodes) {
      degree.push_back(0.0);
      for (const Index j : nodes) degree.back() += level.row(i)[j] > 0 ? 1.0 : 0.0;
    }
    SimpleLaplacian laplacian;
    laplacian.read({level, 0, nodes, degree});
    return GetParam()(laplacian, one_piece);
  }
};

INSTANTIATE_TEST_SUITE_P(Solvers, EigenvaluePairs, ::testing::Values(in_float64, from_float32),
                         [](const auto& info) {
                           return info.param == in_float64 ? "InFloat64" : "FromFloat32";
                         });

std::vector<Index> all_of(Index n) {
  std::vector<Index> nodes(static_cast<std::size_t>(n));
  std::iota(nodes.begin(), nodes.end(), Index{0});
  return nodes;
}

Eigen::VectorXd spectrum(const LevelTable& level, const std::vector<Index>& nodes) {
  const Index m = static_cast<Index>(nodes.size());
  Eigen::MatrixXd laplacian = Eigen::MatrixXd::Zero(m, m);
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < m; ++j) {
      if (level.row(nodes[i])[nodes[j]] == 0) continue;
      laplacian(i, j) -= 1.0;
      laplacian(i, i) += 1.0;
    }
  }
  return testing::eigenvalues(laplacian);
}

TEST_P(EigenvaluePairs, PathHasItsClosedForm) {
  constexpr Index n = 100;
  std::vector<Edge> edges;
  for (Index i = 0; i + 1 < n; ++i) edges.emplace_back(i, i + 1);
  const Pair pair = pair_of(table(n, edges), all_of(n));
  ASSERT_TRUE(pair);
  EXPECT_NEAR(pair->mu2, 2.0 - 2.0 * std::cos(std::numbers::pi / n), 1e-13);
  EXPECT_NEAR(pair->mu3, 2.0 - 2.0 * std::cos(2.0 * std::numbers::pi / n), 1e-13);
}

TEST_P(EigenvaluePairs, FindsBothOfAnEigenvalueOfMultiplicityTwo) {
  constexpr Index n = 61;
  std::vector<Edge> edges;
  for (Index i = 0; i < n; ++i) edges.emplace_back(i, (i + 1) % n);
  const Pair pair = pair_of(table(n, edges), all_of(n));
  ASSERT_TRUE(pair);
  EXPECT_NEAR(pair->mu2, 2.0 - 2.0 * std::cos(2.0 * std::numbers::pi / n), 1e-13);
  EXPECT_NEAR(pair->mu3, pair->mu2, 1e-13);
}

TEST_P(EigenvaluePairs, FewDifferentEigenvaluesEndTheStepsEarly) {
  // Complete bipartite on 15 and 25: 0, 15 (24 times), 25 (14 times), 40.
  std::vector<Edge> edges;
  for (Index i = 0; i < 15; ++i) {
    for (Index j = 15; j < 40; ++j) edges.emplace_back(i, j);
  }
  const Pair pair = pair_of(table(40, edges), all_of(40));
  ASSERT_TRUE(pair);
  EXPECT_NEAR(pair->mu2, 15.0, 1e-12);
  EXPECT_NEAR(pair->mu3, 15.0, 1e-12);
}

TEST_P(EigenvaluePairs, TwoPiecesLeaveTheSmallerOneToDecide) {
  // A cycle of 20 and a path of 25, the even rows of a larger table.
  std::vector<Edge> edges;
  for (Index i = 0; i < 20; ++i) edges.emplace_back(2 * i, 2 * ((i + 1) % 20));
  for (Index i = 20; i < 44; ++i) edges.emplace_back(2 * i, 2 * (i + 1));
  edges.emplace_back(1, 2);
  std::vector<Index> nodes, path;
  for (Index i = 0; i < 45; ++i) nodes.push_back(2 * i);
  for (Index i = 20; i < 45; ++i) path.push_back(i);
  const Pair pair = pair_of(table(90, edges), nodes, path);
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair->mu2, 0.0);
  EXPECT_NEAR(pair->mu3, 2.0 - 2.0 * std::cos(std::numbers::pi / 25.0), 1e-13);
}

TEST_P(EigenvaluePairs, EqualsEigenOnRandomGraphsOfEveryDensity) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<double> uniform;
  Index tried = 0, converged = 0;
  for (Index n = 12; n < 140; n += 7) {
    for (const double share : {0.05, 0.2, 0.5, 0.8, 0.95, 0.99}) {
      std::vector<Edge> edges;
      for (Index i = 1; i < n; ++i) {
        edges.emplace_back(i, static_cast<Index>(uniform(generator) * static_cast<double>(i)));
        for (Index j = 0; j < i; ++j) {
          if (uniform(generator) < share) edges.emplace_back(i, j);
        }
      }
      const LevelTable level = table(n, edges);
      std::vector<Index> nodes;
      for (Index i = 0; i < n; ++i) {
        if (i % 5 != 3 || n % 2 == 0) nodes.push_back(i);
      }
      const Eigen::VectorXd values = spectrum(level, nodes);
      // Without every fifth node a sparse graph can fall into pieces.
      if (values[1] < 1e-9) continue;
      ++tried;
      const Pair pair = pair_of(level, nodes);
      if (!pair) continue;
      ++converged;
      const double bound = 1e-14 * static_cast<double>(n) * std::max(1.0, values[2]);
      EXPECT_NEAR(pair->mu2, values[1], bound) << n << " " << share;
      EXPECT_NEAR(pair->mu3, values[2], bound) << n << " " << share;
    }
  }
  EXPECT_GT(tried, 80);
  EXPECT_GE(converged, tried - 2);
}

TEST_P(EigenvaluePairs, NearlyEqualEigenvaluesAreToldApart) {
  // Two cycles of 40 nodes that one edge joins, one of them with a chord: pairs split by little.
  std::vector<Edge> edges{{0, 40}, {5, 25}};
  for (Index k = 0; k < 40; ++k) {
    edges.emplace_back(k, (k + 1) % 40);
    edges.emplace_back(40 + k, 40 + (k + 1) % 40);
  }
  const LevelTable level = table(80, edges);
  const Eigen::VectorXd values = spectrum(level, all_of(80));
  const Pair pair = pair_of(level, all_of(80));
  ASSERT_TRUE(pair);
  EXPECT_NEAR(pair->mu2, values[1], 1e-13);
  EXPECT_NEAR(pair->mu3, values[2], 1e-13);
}

TEST_P(EigenvaluePairs, CrowdsOfEigenvaluesAboveBothAreLeftBehind) {
  // Thirty cycles of ten nodes that hang on one node: μ2 and those above it are equal.
  std::vector<Edge> edges;
  for (Index cycle = 0; cycle < 30; ++cycle) {
    for (Index k = 0; k < 10; ++k) edges.emplace_back(10 * cycle + k, 10 * cycle + (k + 1) % 10);
    edges.emplace_back(10 * cycle, 300);
  }
  const LevelTable level = table(301, edges);
  const Eigen::VectorXd values = spectrum(level, all_of(301));
  const Pair pair = pair_of(level, all_of(301));
  ASSERT_TRUE(pair);
  EXPECT_NEAR(pair->mu2, values[1], 1e-12);
  EXPECT_NEAR(pair->mu3, values[2], 1e-12);
}

TEST_P(EigenvaluePairs, SmallEigenvalueIsFarBelowACrowd) {
  // A long path and 28 random trees of ten nodes hang on one node: the path's eigenvalue is small,
  // and those of the trees crowd above it.
  std::mt19937 generator(3);
  std::vector<Edge> edges{{0, 1}};
  for (Index i = 2; i < 20; ++i) edges.emplace_back(i - 1, i);
  for (Index first = 20; first < 300; first += 10) {
    edges.emplace_back(0, first);
    for (Index i = 1; i < 10; ++i)
      edges.emplace_back(first + i,
                         first + static_cast<Index>(generator() % static_cast<unsigned>(i)));
  }
  const LevelTable level = table(300, edges);
  const Eigen::VectorXd values = spectrum(level, all_of(300));
  const Pair pair = pair_of(level, all_of(300));
  ASSERT_TRUE(pair);
  EXPECT_NEAR(pair->mu2, values[1], 1e-12);
  EXPECT_NEAR(pair->mu3, values[2], 1e-12);
}

}  // namespace
}  // namespace attnscope
