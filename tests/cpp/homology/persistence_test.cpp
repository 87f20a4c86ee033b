// SPDX-License-Identifier: MIT
#include "kernels/homology/persistence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
using Ends = std::array<std::int32_t, 2>;

std::vector<Bar> bars_of(const RowMatrix<double>& a, const PersistenceOptions& options = {}) {
  PersistenceWorkspace workspace;
  std::vector<Bar> bars;
  persistence(view(a), options, workspace, bars);
  return bars;
}

std::vector<Bar> of_dimension(const std::vector<Bar>& bars, int dimension) {
  std::vector<Bar> chosen;
  for (const Bar& bar : bars) {
    if (bar.dimension == dimension) chosen.push_back(bar);
  }
  return chosen;
}

// H0 and H1 by column reduction of the whole boundary matrix: what the lune algorithm must equal,
// pair by pair. Edges are ranked by (weight falling, row, column); a triangle enters with its last
// edge.
struct Pairing {
  std::vector<std::pair<int, int>> edges;  // by rank: (row, column)
  std::vector<int> merges;                 // ranks
  std::vector<std::pair<int, int>> cycles;
};

Pairing brute_force(const RowMatrix<double>& a) {
  const int n = static_cast<int>(a.rows());
  Pairing result;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < i; ++j) result.edges.push_back({i, j});
  }
  const auto weight = [&](std::pair<int, int> e) {
    return std::min(1.0, std::max(a(e.first, e.second), a(e.second, e.first)));
  };
  std::stable_sort(result.edges.begin(), result.edges.end(),
                   [&](auto x, auto y) { return weight(x) > weight(y); });
  const int m = static_cast<int>(result.edges.size());
  std::vector<std::vector<int>> rank(n, std::vector<int>(n, 0));
  for (int e = 0; e < m; ++e) {
    const auto [i, j] = result.edges[e];
    rank[i][j] = rank[j][i] = e;
  }
  std::vector<int> root(n);
  std::iota(root.begin(), root.end(), 0);
  for (int e = 0; e < m; ++e) {
    const auto [i, j] = result.edges[e];
    if (root[i] == root[j]) continue;
    const int from = root[i];
    const int to = root[j];
    for (int& r : root) r = r == from ? to : r;
    result.merges.push_back(e);
  }
  std::vector<std::vector<int>> triangles;
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < i; ++j) {
      for (int k = 0; k < j; ++k) {
        std::vector<int> sides = {rank[i][j], rank[i][k], rank[j][k]};
        std::sort(sides.rbegin(), sides.rend());
        triangles.push_back(sides);
      }
    }
  }
  std::sort(triangles.begin(), triangles.end());
  std::vector<std::vector<int>> column_of(m);
  for (const auto& triangle : triangles) {
    std::vector<int> column = triangle;  // descending
    while (!column.empty() && !column_of[column[0]].empty()) {
      std::vector<int> sum;
      std::set_symmetric_difference(column.begin(), column.end(), column_of[column[0]].begin(),
                                    column_of[column[0]].end(), std::back_inserter(sum),
                                    std::greater<>());
      column = sum;
    }
    if (column.empty()) continue;
    column_of[column[0]] = column;
    if (column[0] != triangle[0]) result.cycles.push_back({column[0], triangle[0]});
  }
  return result;
}

void expect_brute_force(const RowMatrix<double>& a, const std::string& name) {
  const Pairing expected = brute_force(a);
  const auto death = [&](int e) {
    const auto [i, j] = expected.edges[e];
    return 1.0 - std::min(1.0, std::max(a(i, j), a(j, i)));
  };
  std::vector<std::vector<double>> expected_bars;
  std::vector<std::vector<double>> computed_bars;
  for (int e : expected.merges) {
    if (death(e) == 0.0) continue;
    expected_bars.push_back({0, 0.0, death(e), -1, -1, double(expected.edges[e].first),
                             double(expected.edges[e].second)});
  }
  expected_bars.push_back({0, 0.0, kInfinity, -1, -1, -1, -1});
  for (auto [birth, end] : expected.cycles) {
    if (death(birth) == death(end)) continue;
    expected_bars.push_back({1, death(birth), death(end), double(expected.edges[birth].first),
                             double(expected.edges[birth].second),
                             double(expected.edges[end].first),
                             double(expected.edges[end].second)});
  }
  for (const Bar& bar : bars_of(a)) {
    computed_bars.push_back({double(bar.dimension), bar.birth, bar.death, double(bar.birth_edge[0]),
                             double(bar.birth_edge[1]), double(bar.death_edge[0]),
                             double(bar.death_edge[1])});
  }
  EXPECT_TRUE(std::is_sorted(computed_bars.begin(), computed_bars.end())) << name;
  std::sort(expected_bars.begin(), expected_bars.end());
  EXPECT_EQ(computed_bars, expected_bars) << name;
}

TEST(Persistence, BarsAndTheirEdgesEqualTheWholeBoundaryMatrix) {
  std::mt19937 generator(7);
  std::uniform_real_distribution<double> uniform;
  for (int round = 0; round < 60; ++round) {
    const Index n = 2 + round % 17;
    RowMatrix<double> a = testing::random_attention(n, round % 2 == 0, 100 + round, 2.0);
    expect_brute_force(a, "softmax, round " + std::to_string(round));
    for (double& entry : a.reshaped()) entry = std::round(4.0 * uniform(generator)) / 4.0;
    expect_brute_force(a, "ties, round " + std::to_string(round));
    for (double& entry : a.reshaped()) entry = uniform(generator) < 0.2 ? entry : 0.0;
    expect_brute_force(a, "sparse ties, round " + std::to_string(round));
    for (double& entry : a.reshaped()) entry = 3.0 * uniform(generator) - 1.5;
    expect_brute_force(a, "negative and above one, round " + std::to_string(round));
  }
}

TEST(Persistence, ManyWordsEqualTheWholeBoundaryMatrix) {
  for (Index n : {63, 64, 65, 90}) {
    expect_brute_force(testing::random_attention(n, false, 5, 1.0), "n = " + std::to_string(n));
  }
}

TEST(Persistence, OneAndTwoTokens) {
  const auto of_single = bars_of(RowMatrix<double>::Ones(1, 1));
  ASSERT_EQ(of_single.size(), 1u);
  EXPECT_EQ(of_single[0].death, kInfinity);
  EXPECT_EQ(of_single[0].death_edge[0], -1);
  RowMatrix<double> two = RowMatrix<double>::Zero(2, 2);
  two(1, 0) = 0.25;
  const auto bars = bars_of(two);
  ASSERT_EQ(bars.size(), 2u);
  EXPECT_EQ(bars[0].death, 0.75);
  EXPECT_EQ(bars[0].death_edge[0], 1);
  EXPECT_EQ(bars[0].death_edge[1], 0);
}

TEST(Persistence, StarAndCompleteHaveNoLoop) {
  for (const auto& a : {testing::star(9, 0.5), testing::complete(9, 0.5)}) {
    const auto bars = bars_of(a);
    ASSERT_EQ(bars.size(), 9u);
    for (int k = 0; k < 8; ++k) EXPECT_EQ(bars[k].death, 0.5);
  }
}

TEST(Persistence, CycleIsOpenUntilTheChordsEnter) {
  for (Index n : {3, 4, 5, 12, 40, 70, 130}) {
    const auto bars = bars_of(testing::cycle(n, 0.75));
    const auto loops = of_dimension(bars, 1);
    EXPECT_EQ(of_dimension(bars, 0).size(), static_cast<std::size_t>(n));
    ASSERT_EQ(loops.size(), n >= 4 ? 1u : 0u) << n;
    if (n < 4) continue;
    EXPECT_EQ(loops[0].birth, 0.25);
    EXPECT_EQ(loops[0].death, 1.0);
  }
}

TEST(Persistence, ALoopThatOpensLongAfterAllIsQuietIsFound) {
  // A cone over 40 tokens has no loop, a path hangs on it early, and hundreds of edges later the
  // path closes to a ring.
  RowMatrix<double> a = RowMatrix<double>::Zero(43, 43);
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> uniform(0.15, 0.8);
  for (Index i = 1; i < 40; ++i) {
    a(i, 0) = 0.9;
    for (Index j = 1; j < i; ++j) a(i, j) = uniform(generator);
  }
  a(40, 0) = a(41, 40) = a(42, 41) = 0.85;
  a(42, 0) = 0.1;
  const auto loops = of_dimension(bars_of(a), 1);
  ASSERT_EQ(loops.size(), 1u);
  EXPECT_EQ(loops[0].birth, 1.0 - 0.1);
  EXPECT_EQ(loops[0].death, 1.0);
  EXPECT_EQ(loops[0].birth_edge[0], 42);
}

TEST(Persistence, ALoopBornAtTheEnclosingRadiusIsNoBar) {
  // The path closes to a ring by an edge as long as those of a cone over it, which come after.
  RowMatrix<double> a = RowMatrix<double>::Zero(5, 5);
  a(1, 0) = a(2, 1) = a(3, 2) = 0.9;
  a(3, 0) = 0.5;
  a.row(4).head(4).setConstant(0.5);
  EXPECT_TRUE(of_dimension(bars_of(a), 1).empty());
  expect_brute_force(a, "a ring and its cone");
}

template <class Scalar>
void expect_distances_are_read_as_they_are(const RowMatrix<double>& weights, double scale) {
  // Weights whose distance from 1 every type holds; distances scaled by a power of two.
  const RowMatrix<Scalar> distances = (scale * (1.0 - weights.array())).matrix().cast<Scalar>();
  for (const int dimension : {0, 1}) {
    PersistenceOptions options;
    options.max_dimension = dimension;
    const auto expected = bars_of(weights, options);
    options.metric = Metric::distance;
    // Whatever becomes of weights, the larger of two distances counts.
    options.symmetrize = Symmetrize::mean;
    PersistenceWorkspace workspace;
    std::vector<Bar> bars;
    persistence(view(distances), options, workspace, bars);
    ASSERT_EQ(bars.size(), expected.size());
    for (std::size_t k = 0; k < bars.size(); ++k) {
      EXPECT_EQ(bars[k].birth, scale * expected[k].birth);
      EXPECT_EQ(bars[k].death, scale * expected[k].death);
      EXPECT_EQ(bars[k].birth_edge[0], expected[k].birth_edge[0]);
      EXPECT_EQ(bars[k].death_edge[0], expected[k].death_edge[0]);
      EXPECT_EQ(bars[k].death_edge[1], expected[k].death_edge[1]);
    }
  }
}

TEST(Persistence, DistancesAreOrderedByThemselves) {
  std::mt19937 generator(4);
  for (const Index n : {1, 2, 3, 17, 40, 70}) {
    RowMatrix<double> weights = RowMatrix<double>::Ones(n, n);
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < i; ++j) {
        weights(i, j) = weights(j, i) = double(generator() % 129) / 128.0;
      }
    }
    for (const double scale : {0.125, 1.0, 64.0}) {
      expect_distances_are_read_as_they_are<double>(weights, scale);
      expect_distances_are_read_as_they_are<float>(weights, scale);
      expect_distances_are_read_as_they_are<Eigen::half>(weights, scale);
      expect_distances_are_read_as_they_are<Eigen::bfloat16>(weights, scale);
    }
  }
}

TEST(Persistence, TheLargerOfTwoDistancesCountsAndMinusNothingIsNothing) {
  RowMatrix<double> distances(3, 3);
  distances << 0, 2, 5, 1, 0, 3, 5, 4, 0;
  for (const int dimension : {0, 1}) {
    const PersistenceOptions options{.max_dimension = dimension, .metric = Metric::distance};
    auto bars = bars_of(distances, options);
    ASSERT_EQ(bars.size(), 3u);
    EXPECT_EQ(bars[0].death, 2.0);
    EXPECT_EQ(bars[1].death, 4.0);
    RowMatrix<double> zero = RowMatrix<double>::Constant(3, 3, -0.0);
    zero(2, 0) = zero(2, 1) = zero(0, 2) = zero(1, 2) = 7.0;
    bars = bars_of(zero, options);
    ASSERT_EQ(bars.size(), 2u);
    EXPECT_EQ(bars[0].death, 7.0);
  }
}

TEST(Persistence, WeightsOfOneAndMoreMakeNoBar) {
  const auto bars = bars_of(testing::complete(5, 1.5));
  ASSERT_EQ(bars.size(), 1u);
  EXPECT_EQ(bars[0].death, kInfinity);
}

TEST(Persistence, OrderSurvivesWhereOneMinusWeightCannot) {
  // 1 − w is 1.0 for both weights in float32; their order still decides which edge joins last.
  RowMatrix<float> a = RowMatrix<float>::Zero(3, 3);
  a(1, 0) = 2e-12f;
  a(2, 0) = 3e-12f;
  a(2, 1) = 1e-12f;
  PersistenceWorkspace workspace;
  std::vector<Bar> bars;
  persistence(view(a), {}, workspace, bars);
  ASSERT_EQ(bars.size(), 3u);
  EXPECT_EQ(bars[0].death, 1.0 - static_cast<double>(3e-12f));
  EXPECT_EQ(bars[1].death, 1.0 - static_cast<double>(2e-12f));
  EXPECT_LT(bars[0].death, bars[1].death);
}

TEST(Persistence, HellingerIsTheDistanceOfTheRoots) {
  const RowMatrix<double> a = testing::random_attention(12, true, 9);
  PersistenceOptions options;
  options.metric = Metric::hellinger;
  RowMatrix<double> similarity(12, 12);
  for (Index i = 0; i < 12; ++i) {
    for (Index j = 0; j < 12; ++j) {
      similarity(i, j) =
          1.0 - (a.row(i).cwiseSqrt() - a.row(j).cwiseSqrt()).norm() / std::sqrt(2.0);
    }
  }
  const auto bars = bars_of(a, options);
  const auto expected = bars_of(similarity);
  ASSERT_EQ(bars.size(), expected.size());
  for (std::size_t k = 0; k < bars.size(); ++k) {
    EXPECT_NEAR(bars[k].birth, expected[k].birth, 1e-14);
    if (bars[k].death < kInfinity) {
      EXPECT_NEAR(bars[k].death, expected[k].death, 1e-14);
    }
  }
}

TEST(Persistence, ScratchLeavesNoTraceBetweenMatrices) {
  PersistenceWorkspace workspace;
  std::vector<Bar> bars;
  const RowMatrix<double> large = testing::random_attention(70, false, 1);
  const RowMatrix<double> small = testing::random_attention(20, true, 2);
  persistence(view(large), {}, workspace, bars);
  bars.clear();
  persistence(view(small), {}, workspace, bars);
  const auto fresh = bars_of(small);
  ASSERT_EQ(bars.size(), fresh.size());
  for (std::size_t k = 0; k < bars.size(); ++k) {
    EXPECT_EQ(bars[k].birth, fresh[k].birth);
    EXPECT_EQ(bars[k].death, fresh[k].death);
    EXPECT_EQ(bars[k].birth_edge[0], fresh[k].birth_edge[0]);
    EXPECT_EQ(bars[k].death_edge[1], fresh[k].death_edge[1]);
  }
}

// H0 alone grows a tree, H0 beside H1 takes edges in their order: the same bars by the same edges,
// however many weights tie and wherever rows end in a tile.
template <class Scalar>
void pieces_alone_and_beside_loops(Index n, int levels, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> level(-1, levels);
  RowMatrix<Scalar> a(n, n);
  for (Index k = 0; k < n * n; ++k) {
    a.data()[k] =
        static_cast<Scalar>(static_cast<float>(level(generator)) / static_cast<float>(levels));
  }
  if (seed % 2 == 0) a.template triangularView<Eigen::StrictlyUpper>().setZero();
  const RowMatrix<Scalar> turned = a.transpose();
  for (const auto symmetrize : {Symmetrize::max, Symmetrize::mean, Symmetrize::min}) {
    for (const auto metric : {Metric::attention, Metric::hellinger}) {
      PersistenceOptions options;
      options.symmetrize = symmetrize;
      options.metric = metric;
      PersistenceWorkspace workspace;
      std::vector<Bar> of_both, of_h0, of_turned;
      persistence(view(a), options, workspace, of_both);
      std::erase_if(of_both, [](const Bar& bar) { return bar.dimension != 0; });
      options.max_dimension = 0;
      persistence(view(a), options, workspace, of_h0);
      persistence(matrix_view(turned.data(), n, 1, n), options, workspace, of_turned);
      ASSERT_EQ(of_h0.size(), of_both.size()) << n << " tokens, seed " << seed;
      ASSERT_EQ(of_turned.size(), of_both.size());
      for (std::size_t k = 0; k < of_both.size(); ++k) {
        for (const Bar& bar : {of_h0[k], of_turned[k]}) {
          EXPECT_EQ(bar.death, of_both[k].death) << n << " tokens, bar " << k;
          EXPECT_EQ(bar.death_edge[0], of_both[k].death_edge[0]) << n << " tokens, bar " << k;
          EXPECT_EQ(bar.death_edge[1], of_both[k].death_edge[1]) << n << " tokens, bar " << k;
        }
      }
    }
  }
}

TEST(Persistence, PiecesAloneAreThoseBesideLoopsWhereverWeightsTie) {
  unsigned seed = 0;
  for (Index n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 50, 97, 98}) {
    for (int levels : {1, 3, 20, 1000}) {
      pieces_alone_and_beside_loops<float>(n, levels, ++seed);
      pieces_alone_and_beside_loops<double>(n, levels, ++seed);
    }
    pieces_alone_and_beside_loops<Eigen::half>(n, 6, ++seed);
    pieces_alone_and_beside_loops<Eigen::bfloat16>(n, 6, ++seed);
  }
}

// The tree of Kruskal: all edges in order, those that join two pieces.
template <class Scalar>
std::vector<Ends> edges_of_kruskal(const RowMatrix<Scalar>& distances) {
  const auto n = static_cast<std::int32_t>(distances.rows());
  std::vector<Ends> edges;
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = 0; j < i; ++j) edges.push_back({i, j});
  }
  std::ranges::stable_sort(edges, {},
                           [&](const Ends& edge) { return distances(edge[0], edge[1]); });
  std::vector<std::int32_t> piece(n);
  std::iota(piece.begin(), piece.end(), 0);
  std::vector<Ends> tree;
  for (const Ends& edge : edges) {
    const std::int32_t from = piece[edge[0]];
    const std::int32_t to = piece[edge[1]];
    if (from == to) continue;
    for (std::int32_t& of_vertex : piece) of_vertex = of_vertex == from ? to : of_vertex;
    tree.push_back(edge);
  }
  return tree;
}

// Distances of random levels, of which few tie often. `pieces`: vertices that lie infinitely far
// from one another where their numbers differ modulo it.
template <class Scalar>
void expect_kruskal(std::int32_t n, int levels, std::int32_t pieces, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> level(1, levels);
  RowMatrix<Scalar> distances = RowMatrix<Scalar>::Zero(n, n);
  for (std::int32_t i = 0; i < n; ++i) {
    for (std::int32_t j = 0; j < i; ++j) {
      const Scalar distance =
          i % pieces == j % pieces ? Scalar(level(generator)) : Scalar(kInfinity);
      distances(i, j) = distances(j, i) = distance;
    }
  }
  const std::vector<Ends> expected = edges_of_kruskal(distances);
  PersistenceWorkspace workspace;
  std::vector<Bar> bars;
  persistence(view(distances), {.max_dimension = 0, .metric = Metric::distance}, workspace, bars);
  ASSERT_EQ(bars.size(), expected.size() + 1);
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const double death = static_cast<double>(distances(expected[k][0], expected[k][1]));
    EXPECT_EQ(bars[k].death, death) << n << " tokens, bar " << k;
    EXPECT_EQ(bars[k].death_edge, death < kInfinity ? expected[k] : Ends({-1, -1}))
        << n << " tokens, bar " << k;
  }
}

TEST(Persistence, PiecesJoinByTheEdgesOfKruskal) {
  unsigned seed = 0;
  for (const std::int32_t n : {2, 3, 5, 63, 64, 65, 100, 127, 128, 129, 150, 200}) {
    for (const int levels : {1, 4, 60, 1 << 20}) {
      for (const std::int32_t pieces : {1, 2, n}) {
        expect_kruskal<float>(n, levels, pieces, ++seed);
        expect_kruskal<double>(n, levels, pieces, ++seed);
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
