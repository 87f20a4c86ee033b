// SPDX-License-Identifier: MIT
#include "kernels/answers/prompt_divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

PromptDivergence of(const RowMatrix<double>& a, Index start, Index stop, Index first_row = 0,
                    Support support = {}, bool find_support = true) {
  PromptWorkspace workspace;
  PromptDivergence divergence{};
  EXPECT_TRUE(prompt_divergence(testing::view(a), first_row, find_support, support, start, stop,
                                divergence, workspace));
  return divergence;
}

// Kruskal's algorithm over the prompt, vertex 0, and the answer's tokens.
double kruskal(const RowMatrix<double>& a, Index start, Index stop) {
  std::vector<std::tuple<double, Index, Index>> edges;
  const auto apart = [&](Index i, Index j) {
    return 1.0 - std::min(std::max(a(i, j), a(j, i)), 1.0);
  };
  for (Index i = start; i < stop; ++i) {
    double nearest = std::numeric_limits<double>::infinity();
    for (Index j = 0; j < start; ++j) nearest = std::min(nearest, apart(i, j));
    edges.emplace_back(nearest, 0, i - start + 1);
    for (Index j = start; j < i; ++j) edges.emplace_back(apart(i, j), j - start + 1, i - start + 1);
  }
  std::sort(edges.begin(), edges.end());
  std::vector<Index> part(static_cast<std::size_t>(stop - start + 1));
  std::iota(part.begin(), part.end(), Index{0});
  double total = 0.0;
  for (const auto& [length, i, j] : edges) {
    const Index from = part[static_cast<std::size_t>(i)], to = part[static_cast<std::size_t>(j)];
    if (from == to) continue;
    std::replace(part.begin(), part.end(), from, to);
    total += length;
  }
  return total;
}

TEST(PromptDivergence, OfAStarAndOfTheIdentity) {
  RowMatrix<double> star = RowMatrix<double>::Zero(7, 7);
  star.col(0).setOnes();
  EXPECT_EQ(of(star, 3, 7).total, 0.0);
  EXPECT_EQ(of(star, 3, 7).star, 0.0);
  const PromptDivergence isolated = of(RowMatrix<double>::Identity(7, 7), 3, 6);
  EXPECT_EQ(isolated.total, 3.0);
  EXPECT_EQ(isolated.per_token, 1.0);
  EXPECT_EQ(isolated.star, 1.0);
}

TEST(PromptDivergence, IsTheTreeOfKruskal) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    for (const bool causal : {false, true}) {
      const Index n = 2 + static_cast<Index>(seed) * 2;
      const RowMatrix<double> a = testing::random_attention(n, causal, seed, 2.0);
      for (const Index start : {Index{1}, n / 2, n - 1}) {
        if (start < 1) continue;
        const PromptDivergence divergence = of(a, start, n);
        const double r = static_cast<double>(n - start);
        EXPECT_NEAR(divergence.total, kruskal(a, start, n), 1e-13 * r) << n << " from " << start;
        EXPECT_DOUBLE_EQ(divergence.per_token, divergence.total / r);
        EXPECT_GE(divergence.star, divergence.per_token - 1e-15);
      }
    }
  }
}

TEST(PromptDivergence, AnyEntryBehindTheDiagonalCounts) {
  constexpr Index n = 37;
  for (Index i = 0; i < n; ++i) {
    for (Index j = i + 1; j < n; ++j) {
      for (const double entry : {0.6, -0.5}) {
        RowMatrix<double> a = testing::random_attention(n, true, 8);
        a(i, j) = entry;
        const PromptDivergence judged = of(a, 18, 33);
        ASSERT_NEAR(judged.total, kruskal(a, 18, 33), 1e-13) << i << " " << j;
        const PromptDivergence full = of(a, 18, 33, 0, Support{}, false);
        ASSERT_EQ(judged.total, full.total) << i << " " << j;
        ASSERT_EQ(judged.star, full.star) << i << " " << j;
      }
    }
  }
}

TEST(PromptDivergence, ReadsNeitherMissingRowsNorInvisibleEntries) {
  const RowMatrix<double> a = testing::random_attention(12, true, 5);
  const double expected = of(a, 8, 11).total;
  RowMatrix<double> part = a;
  part.topRows(6).setConstant(kNaN);
  EXPECT_EQ(of(part, 8, 11, 6, {Support::Kind::causal}, false).total, expected);
  RowMatrix<double> full = a;
  for (Index i = 0; i < 12; ++i) full.row(i).tail(11 - i).setConstant(0.9);
  EXPECT_EQ(of(full, 8, 11, 0, {Support::Kind::causal}, false).total, expected);
  bool mask[144] = {};
  for (Index i = 0; i < 12; ++i) std::fill(mask + 12 * i, mask + 12 * i + i + 1, true);
  EXPECT_EQ(of(full, 8, 11, 0, testing::masked(mask, 12), false).total, expected);
}

TEST(PromptDivergence, CapsWeightsAndHasNoValueWithoutAPrompt) {
  EXPECT_EQ(of(RowMatrix<double>::Constant(5, 5, 3.0), 2, 5).total, 0.0);
  EXPECT_EQ(of(RowMatrix<double>::Constant(5, 5, -1.0), 2, 5).total, 6.0);
  EXPECT_TRUE(std::isnan(of(testing::uniform_causal(5), 0, 5).star));
  RowMatrix<double> broken = testing::uniform_causal(5);
  broken(1, 0) = kNaN;
  PromptWorkspace workspace;
  PromptDivergence divergence{};
  EXPECT_FALSE(
      prompt_divergence(testing::view(broken), 0, true, Support{}, 2, 5, divergence, workspace));
}

}  // namespace
}  // namespace attnscope
