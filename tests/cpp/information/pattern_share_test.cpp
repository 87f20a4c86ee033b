// SPDX-License-Identifier: MIT
#include "kernels/information/pattern_share.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

PatternShare of(const RowMatrix<double>& a, Pattern pattern,
                const std::vector<std::int64_t>& tokens = {}, bool all = false,
                const bool* marks = nullptr) {
  PatternWorkspace workspace;
  PatternShare share{};
  Support support;
  const Support marked = marks == nullptr ? Support{} : testing::masked(marks, a.rows());
  const PatternRequest request{&pattern, 1, tokens.empty() ? nullptr : tokens.data(), marked, all};
  EXPECT_TRUE(pattern_share(testing::view(a), true, support, request, &share, workspace));
  return share;
}

RowMatrix<double> before(Index n) {
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) a(i, std::max<Index>(i - 1, 0)) = 1.0;
  return a;
}

TEST(PatternShare, OfTheMapOfTheTokenBefore) {
  const PatternShare previous = of(before(4), Pattern::previous);
  EXPECT_DOUBLE_EQ(previous.share, 1.0);
  EXPECT_DOUBLE_EQ(previous.uniform, 13.0 / 36.0);
  EXPECT_DOUBLE_EQ(previous.boost, 36.0 / 13.0);
  EXPECT_EQ(previous.queries, 3);
  EXPECT_DOUBLE_EQ(previous.distance, 1.0 / std::sqrt(7.0));
  EXPECT_DOUBLE_EQ(of(before(4), Pattern::first).share, 0.5);
  EXPECT_DOUBLE_EQ(of(before(4), Pattern::self).share, 0.25);
  EXPECT_EQ(of(before(4), Pattern::next).queries, 0);
  EXPECT_TRUE(std::isnan(of(before(4), Pattern::next).share));
  EXPECT_DOUBLE_EQ(of(before(4), Pattern::previous, {}, true).share, 0.75);
}

TEST(PatternShare, OfCopiesIsWhatFollowedThem) {
  // a b a b: token 2 copies 0, token 3 copies 1
  const std::vector<std::int64_t> tokens{7, -2, 7, -2};
  RowMatrix<double> a = RowMatrix<double>::Identity(4, 4);
  a.row(2) << 0.1, 0.6, 0.3, 0.0;
  a.row(3) << 0.0, 0.2, 0.7, 0.1;
  EXPECT_DOUBLE_EQ(of(a, Pattern::duplicate, tokens).share, (0.1 + 0.2) / 2);
  EXPECT_DOUBLE_EQ(of(a, Pattern::induction, tokens).share, (0.6 + 0.7) / 2);
  EXPECT_EQ(of(a, Pattern::induction, tokens).queries, 2);
  // a a: what follows the first copy is the query itself, and the copy before a query is its own
  EXPECT_EQ(of(before(2), Pattern::induction, {5, 5}).queries, 0);
  EXPECT_EQ(of(before(2), Pattern::duplicate, {5, 5}).share, 1.0);
}

TEST(PatternShare, OfAMaskIsThatOfItsVisibleKeys) {
  bool marks[9] = {true, true, true, false, true, true, false, false, false};
  const RowMatrix<double> a = testing::uniform_causal(3);
  const PatternShare share = of(a, Pattern::marked, {}, false, marks);
  EXPECT_EQ(share.queries, 2);
  EXPECT_DOUBLE_EQ(share.share, (1.0 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(share.boost, 1.0);
}

TEST(PatternShare, DistanceKeepsItsDigitsNearZero) {
  RowMatrix<double> a = RowMatrix<double>::Identity(9, 9);
  EXPECT_EQ(of(a, Pattern::self).distance, 0.0);
  a(8, 0) = 1e-12;
  EXPECT_NEAR(of(a, Pattern::self).distance, 1e-12 / std::sqrt(18.0), 1e-26);
}

TEST(PatternShare, RefusesWhatIsNotFinite) {
  RowMatrix<double> a = before(5);
  a(4, 4) = kNaN;
  PatternWorkspace workspace;
  PatternShare share{};
  Support support;
  const Pattern pattern = Pattern::first;
  EXPECT_FALSE(pattern_share(testing::view(a), true, support,
                             {&pattern, 1, nullptr, Support{}, false}, &share, workspace));
}

}  // namespace
}  // namespace attnscope
