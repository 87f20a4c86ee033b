// SPDX-License-Identifier: MIT
#include "kernels/answers/lookback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

struct Found {
  bool finite = false;
  std::vector<double> ratio;
  double value = 0.0;
  Support support;
};

template <class Scalar>
Found of(const RowMatrix<Scalar>& a, const LookbackAnswer& answer, Index first_row = 0,
         Support support = {}, bool find_support = true) {
  RowScratch scratch;
  Found lookback_of_map;
  lookback_of_map.ratio.assign(static_cast<std::size_t>(a.rows() - first_row), -1.0);
  lookback_of_map.support = support;
  lookback_of_map.finite =
      lookback(testing::view(a), first_row, find_support, lookback_of_map.support, answer,
               lookback_of_map.ratio.data(), lookback_of_map.value, scratch);
  return lookback_of_map;
}

TEST(Lookback, OfUniformAttentionIsOneHalf) {
  for (const bool predicting : {false, true}) {
    const Found lookback_of_map = of(testing::uniform_causal(9), {4, 8, 4, predicting});
    EXPECT_TRUE(lookback_of_map.finite);
    EXPECT_EQ(lookback_of_map.support.kind, Support::Kind::causal);
    EXPECT_NEAR(lookback_of_map.value, 0.5, 1e-15);
    // the query before the answer sees its context alone
    EXPECT_TRUE(std::isnan(lookback_of_map.ratio[3]));
    EXPECT_EQ(std::isnan(lookback_of_map.ratio[7]), predicting);
    EXPECT_NEAR(lookback_of_map.ratio[4], 0.5, 1e-15);
  }
}

TEST(Lookback, IsTheShareOfTwoMeans) {
  RowMatrix<double> a = RowMatrix<double>::Zero(4, 4);
  a.row(3) << 0.1, 0.3, 0.2, 0.4;
  a(0, 0) = a(1, 1) = a(2, 2) = 1.0;
  const Found lookback_of_map = of(a, {2, 4, 2, false});
  EXPECT_DOUBLE_EQ(lookback_of_map.ratio[3], 0.2 / (0.2 + 0.3));
  EXPECT_EQ(lookback_of_map.ratio[2], 0.0);
  EXPECT_DOUBLE_EQ(lookback_of_map.value, 0.2);
  EXPECT_DOUBLE_EQ(of(a, {2, 4, 1, false}).ratio[3], 0.1 / (0.1 + 0.3));
}

TEST(Lookback, OfTheLastRowsIsThatOfTheSquareMap) {
  const RowMatrix<double> a = testing::random_attention(11, true, 3);
  const Support causal{Support::Kind::causal};
  const Found all = of(a, {7, 11, 4, true}, 0, causal, false);
  const Found last = of(a, {7, 11, 4, true}, 6, causal, false);
  ASSERT_EQ(last.ratio.size(), 5u);
  EXPECT_EQ(last.value, all.value);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(last.ratio[i], all.ratio[i + 6]);
  // rows before the first are not read
  RowMatrix<double> broken = a;
  broken.topRows(6).setConstant(kNaN);
  EXPECT_EQ(of(broken, {7, 11, 4, true}, 6, causal, false).value, all.value);
}

TEST(Lookback, AnyEntryBehindTheDiagonalMakesAMapFull) {
  constexpr Index n = 37;
  for (Index i = 0; i < n; ++i) {
    for (Index j = i + 1; j < n; ++j) {
      RowMatrix<double> a = testing::random_attention(n, true, 8);
      a(i, j) = 0.25;
      const Found judged = of(a, {20, 30, 9, true});
      const Found full = of(a, {20, 30, 9, true}, 0, Support{}, false);
      ASSERT_EQ(judged.support.kind, Support::Kind::full) << i << " " << j;
      ASSERT_EQ(judged.value, full.value) << i << " " << j;
      for (std::size_t k = 19; k < 29; ++k) ASSERT_EQ(judged.ratio[k], full.ratio[k]);
    }
  }
}

TEST(Lookback, CountsTheKeysOfAMask) {
  const RowMatrix<double> a = RowMatrix<double>::Constant(4, 4, 0.25);
  bool mask[16] = {};
  for (const int at : {12, 14, 15}) mask[at] = true;
  const Found lookback_of_map = of(a, {3, 4, 3, false}, 0, testing::masked(mask, 4), false);
  EXPECT_DOUBLE_EQ(lookback_of_map.value, 0.5);
  mask[15] = false;
  EXPECT_TRUE(std::isnan(of(a, {3, 4, 3, false}, 0, testing::masked(mask, 4), false).value));
}

TEST(Lookback, HasNoValueWithoutAnEntryOrAPrompt) {
  RowMatrix<double> a = RowMatrix<double>::Zero(5, 5);
  EXPECT_TRUE(std::isnan(of(a, {2, 5, 2, false}).value));
  EXPECT_TRUE(std::isnan(of(testing::uniform_causal(5), {0, 5, 0, true}).value));
  // found in a later band than the answer, whose ratios are taken back
  RowMatrix<double> late = testing::uniform_causal(40);
  late(39, 3) = kNaN;
  const Found unfinished = of(late, {2, 9, 2, true});
  EXPECT_FALSE(unfinished.finite);
  EXPECT_TRUE(std::isnan(unfinished.ratio[5]));
  a(4, 0) = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(of(a, {2, 5, 2, false}).finite);
  EXPECT_FALSE(of(a, {2, 5, 2, false}, 3, {Support::Kind::causal}, false).finite);
}

}  // namespace
}  // namespace attnscope
