// SPDX-License-Identifier: MIT
#include "graphs/threshold_levels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

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
