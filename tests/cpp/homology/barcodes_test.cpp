// SPDX-License-Identifier: MIT
#include "homology/barcodes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace attnscope {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Bars of both dimensions, not in order, two of them without an end.
const std::vector<double> births = {0.0, 0.25, 0.0, 0.0, 0.5, 0.25};
const std::vector<double> deaths = {0.5, 0.75, kInfinity, 0.25, kInfinity, 0.375};
const std::vector<std::int8_t> dimensions = {0, 1, 0, 0, 1, 1};
const BarSpans bars{births, deaths, dimensions};

TEST(Barcodes, SumsAreOfFiniteBars) {
  BarSums sums[kBarDimensions];
  bar_sums(bars, sums);
  EXPECT_EQ(sums[0].count, 3);
  EXPECT_EQ(sums[0].finite, 2);
  EXPECT_EQ(sums[0].total, 0.75);
  EXPECT_EQ(sums[0].longest, 0.5);
  EXPECT_EQ(sums[1].count, 3);
  EXPECT_EQ(sums[1].finite, 2);
  EXPECT_EQ(sums[1].total, 0.625);
  EXPECT_EQ(sums[1].longest, 0.5);
}

TEST(Barcodes, EntropyIsThatOfTheirShares) {
  double entropies[kBarDimensions];
  bar_entropies(bars, entropies);
  EXPECT_NEAR(entropies[0], std::log(3.0) - 2.0 / 3.0 * std::log(2.0), 1e-15);
  EXPECT_NEAR(entropies[1], std::log(5.0) - 0.8 * std::log(4.0), 1e-15);
}

TEST(Barcodes, ALengthThatIsNothingBesideTheSumAddsNothing) {
  const std::vector<double> begin = {0.0, 0.0, 0.0};
  const std::vector<double> end = {1e300, 5e-324, 0.0};
  const std::vector<std::int8_t> pieces = {0, 0, 0};
  double entropies[kBarDimensions];
  bar_entropies({begin, end, pieces}, entropies);
  EXPECT_EQ(entropies[0], 0.0);
  EXPECT_EQ(entropies[1], 0.0);  // no bar
}

TEST(Barcodes, ABarIsAliveFromItsBirthUntilBeforeItsDeath) {
  const double scales[] = {0.5, 0.0, 0.25, -1.0, 0.375, kInfinity};
  std::int64_t counts[2 * 6];
  count_alive(bars, scales, counts);
  const std::int64_t expected[] = {1, 2, 3, 0, 2, 2, 0, 0, 2, 1, 0, 0};
  for (int k = 0; k < 12; ++k) EXPECT_EQ(counts[k], expected[k]) << k;
}

}  // namespace
}  // namespace attnscope
