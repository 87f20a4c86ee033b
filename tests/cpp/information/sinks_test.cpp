// SPDX-License-Identifier: MIT
#include "kernels/information/sinks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

Support causal() {
  Support support;
  support.kind = Support::Kind::causal;
  return support;
}

// The last rows of a causal map: each of its numbers from the map's own rows.
TEST(Sinks, OfTheLastRowsOfACausalMap) {
  constexpr Index n = 23;
  const RowMatrix<double> a = testing::random_attention(n, true, 3, 2.0);
  for (const Index q : {1, 4, 23}) {
    const auto rows = matrix_view(a.data() + (n - q) * n, q, n, n, Index{1});
    Support support;
    support.shift = n - q;
    SinkWorkspace workspace;
    std::vector<double> alpha(n);
    SinkAnswers answers;
    answers.incoming = alpha.data();
    SinkRequest request;
    request.first = 2;
    request.queries = q;
    EXPECT_TRUE(sink_statistics(rows, true, support, request, answers, workspace));
    EXPECT_EQ(support.kind, Support::Kind::causal);
    EXPECT_EQ(support.shift, n - q);
    for (Index j = 0; j < n; ++j) {
      const Index first = std::max(j, n - q);
      double sum = 0.0;
      for (Index i = first; i < n; ++i) sum += a(i, j);
      EXPECT_NEAR(alpha[j], sum / static_cast<double>(n - first), 1e-15) << q << " " << j;
    }
    EXPECT_NEAR(answers.share.share, a.bottomRows(q).leftCols(2).sum() / static_cast<double>(q),
                1e-15);
  }
}

SinkAnswers answers_of(const RowMatrix<double>& a, Support support, double min_visibility) {
  SinkWorkspace workspace;
  SinkRequest request;
  request.position = true;
  request.min_visibility = min_visibility;
  request.top = 1;
  SinkAnswers answers;
  EXPECT_TRUE(sink_statistics(view(a), false, support, request, answers, workspace));
  return answers;
}

std::vector<double> incoming_of(const RowMatrix<double>& a, Support support) {
  SinkWorkspace workspace;
  std::vector<double> alpha(static_cast<std::size_t>(a.rows()));
  SinkAnswers answers;
  answers.incoming = alpha.data();
  EXPECT_TRUE(sink_statistics(view(a), false, support, SinkRequest{}, answers, workspace));
  return alpha;
}

TEST(Sinks, UniformCausalGivesHarmonicNumbers) {
  constexpr Index n = 11;
  const std::vector<double> alpha = incoming_of(testing::uniform_causal(n), causal());
  for (Index j = 0; j < n; ++j) {
    double tail = 0.0;
    for (Index i = j; i < n; ++i) tail += 1.0 / double(i + 1);
    EXPECT_NEAR(alpha[j], tail / double(n - j), 1e-15);
  }
}

TEST(Sinks, TheStarHasOneSinkThatHoldsEverything) {
  RowMatrix<double> star = RowMatrix<double>::Zero(10, 10);
  star.col(0).setOnes();
  SinkWorkspace workspace;
  bool tokens[10];
  sink_tokens(view(star), causal(), SinkRule{}, tokens, workspace);
  EXPECT_TRUE(tokens[0]);
  EXPECT_EQ(std::count(tokens, tokens + 10, true), 1);
  EXPECT_EQ(answers_of(star, causal(), 0.3).position, 0);
  EXPECT_EQ(answers_of(star, causal(), 0.3).top_mass, 1.0);
  const SinkShare share = sink_share(view(star), causal(), 1, 10);
  EXPECT_EQ(share.share, 1.0);
  double uniform = 0.0;
  for (Index i = 0; i < 10; ++i) uniform += 1.0 / double(i + 1);
  EXPECT_NEAR(share.uniform, uniform / 10.0, 1e-15);
}

TEST(Sinks, VisibilityDecidesAtTheExactCount) {
  // Key 7 of 10 is seen by three queries, which is ⌈0.3·10⌉; key 8 by two.
  RowMatrix<double> a = RowMatrix<double>::Identity(10, 10);
  SinkWorkspace workspace;
  bool tokens[10];
  sink_tokens(view(a), causal(), SinkRule{0.5, 0.3, 0.3}, tokens, workspace);
  EXPECT_TRUE(tokens[7]);
  EXPECT_FALSE(tokens[8]);
  EXPECT_FALSE(tokens[6]);  // one of four queries
  EXPECT_EQ(answers_of(a, causal(), 0.3).position, 7);
}

TEST(Sinks, TheShareOfQueriesMayEqualGamma) {
  const RowMatrix<double> a = RowMatrix<double>::Identity(4, 4);
  SinkWorkspace workspace;
  bool tokens[4];
  sink_tokens(view(a), Support{}, SinkRule{0.5, 0.25, 0.3}, tokens, workspace);
  EXPECT_EQ(std::count(tokens, tokens + 4, true), 4);
}

TEST(Sinks, TheFirstOfEqualKeysIsTheSink) {
  const RowMatrix<double> a = RowMatrix<double>::Identity(4, 4);
  SinkWorkspace workspace;
  SinkRequest questions;
  questions.position = true;
  SinkAnswers answers;
  Support full;
  EXPECT_TRUE(sink_statistics(view(a), false, full, questions, answers, workspace));
  EXPECT_EQ(answers.position, 0);
}

TEST(Sinks, QuantileEqualsSortingEveryVisibleEntry) {
  QuantileWorkspace workspace;
  for (Index n : {1, 2, 9, 64, 150, 300}) {
    for (bool is_causal : {false, true}) {
      for (int levels : {0, 3}) {
        RowMatrix<double> a = testing::random_attention(n, is_causal, unsigned(n));
        // Few levels make long runs of ties.
        if (levels > 0) a = (a * levels).array().round() / levels;
        std::vector<double> visible;
        for (Index i = 0; i < n; ++i) {
          for (Index j = 0; j < (is_causal ? i + 1 : n); ++j) visible.push_back(a(i, j));
        }
        std::sort(visible.begin(), visible.end());
        for (double q : {0.0, 0.25, 0.9, 1.0}) {
          const double position = q * double(visible.size() - 1);
          const auto low = std::size_t(position);
          const std::size_t high = std::min(low + 1, visible.size() - 1);
          const double expected =
              visible[low] + (visible[high] - visible[low]) * (position - double(low));
          EXPECT_EQ(visible_quantile(view(a), is_causal ? causal() : Support{}, q, workspace),
                    expected)
              << "n " << n << " q " << q << " levels " << levels;
        }
      }
    }
  }
}

TEST(Sinks, QuantileInterpolatesAcrossAGap) {
  // The lower half lies near 0.25 and the upper half is 0.75; the median is between them.
  for (double spread : {0.0, 1e-12, 1e-7}) {
    for (Index n : {10, 100, 300}) {
      RowMatrix<double> a(n, n);
      const Index half = n * n / 2;
      for (Index k = 0; k < n * n; ++k) {
        a.data()[(k * 7919) % (n * n)] = k < half ? 0.25 - spread * double(k) : 0.75;
      }
      QuantileWorkspace workspace;
      EXPECT_NEAR(visible_quantile(view(a), Support{}, 0.5, workspace), 0.5, 1e-15)
          << "n " << n << " spread " << spread;
    }
  }
}

TEST(Sinks, QuantileIsExactWhereItsSampleMisleads) {
  // The entries that the sample reads are all 0; the others are distinct.
  constexpr Index n = 100;
  RowMatrix<double> a(n, n);
  for (Index k = 0; k < n * n; ++k) a.data()[k] = 1e-4 * double((k * 7919) % (n * n) + 1);
  for (Index k = 0; k < 256; ++k) a.data()[Index((double(k) + 0.5) * double(n * n) / 256.0)] = 0.0;
  std::vector<double> sorted(a.data(), a.data() + n * n);
  std::sort(sorted.begin(), sorted.end());
  QuantileWorkspace workspace;
  for (Index rank : {0, 255, 256, 5000, 9999}) {
    const double q = double(rank) / double(n * n - 1);
    EXPECT_NEAR(visible_quantile(view(a), Support{}, q, workspace), sorted[std::size_t(rank)],
                1e-12);
  }
}

TEST(Sinks, QuantileOrdersNegativeNumbersAndZeros) {
  RowMatrix<double> a(2, 2);
  a << -1.0, 0.0, -0.0, 2.0;
  QuantileWorkspace workspace;
  EXPECT_EQ(visible_quantile(view(a), Support{}, 0.0, workspace), -1.0);
  EXPECT_EQ(visible_quantile(view(a), Support{}, 0.5, workspace), 0.0);
  EXPECT_EQ(visible_quantile(view(a), Support{}, 1.0, workspace), 2.0);
}

TEST(Sinks, AThresholdBetweenFloatsDecidesAsInDoubles) {
  RowMatrix<float> a = RowMatrix<float>::Constant(4, 4, 0.1f);
  SinkWorkspace workspace;
  bool tokens[4];
  sink_tokens(view(a), Support{}, SinkRule{static_cast<double>(0.1f), 0.4, 0.3}, tokens, workspace);
  EXPECT_TRUE(tokens[0]);
  sink_tokens(view(a), Support{}, SinkRule{std::nextafter(double(0.1f), 1.0), 0.4, 0.3}, tokens,
              workspace);
  EXPECT_FALSE(tokens[0]);
}

TEST(Sinks, WithoutMassOrQueriesThereIsNoAnswer) {
  const RowMatrix<double> zero = RowMatrix<double>::Zero(3, 3);
  EXPECT_TRUE(std::isnan(answers_of(zero, Support{}, 0.3).top_mass));
  const bool hidden[9] = {};
  const Support support = testing::masked(hidden, 3);
  EXPECT_TRUE(std::isnan(incoming_of(zero, support)[0]));
  EXPECT_EQ(answers_of(zero, support, 0.0).position, -1);
  EXPECT_TRUE(std::isnan(sink_share(view(zero), support, 1, 3).share));
}

TEST(Sinks, FarDistanceIsATenthAndAtLeastFourOrAQuarter) {
  EXPECT_EQ(far_distance(1), 1);
  EXPECT_EQ(far_distance(7), 1);
  EXPECT_EQ(far_distance(16), 4);
  EXPECT_EQ(far_distance(40), 4);
  EXPECT_EQ(far_distance(41), 5);
}

TEST(Sinks, FarAttentionIsTheSumOverFarQueries) {
  constexpr Index n = 37;
  RowMatrix<double> a(n, n);
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) a(i, j) = double((7 * i + 3 * j * j) % 11) / 11.0;
  bool near[n * n];
  for (Index i = 0; i < n; ++i)
    for (Index j = 0; j < n; ++j) near[i * n + j] = j <= i && i - j < 15;
  Support mask;
  mask.kind = Support::Kind::mask;
  mask.mask = near;
  mask.mask_row_stride = n;
  mask.mask_column_stride = 1;
  for (const Support& support : {Support{}, causal(), mask}) {
    std::vector<double> numbers(5 * n);
    std::vector<std::int64_t> queries(n);
    SinkWorkspace workspace;
    double* at = numbers.data();
    far_attention(view(a), support,
                  FarAttention{at, at + n, at + 2 * n, at + 3 * n, at + 4 * n, queries.data()},
                  workspace);
    for (Index j = 0; j < n; ++j) {
      double mass = 0, expected = 0, variance = 0, largest = 0, uniform = 0;
      std::int64_t count = 0;
      for (Index i = 0; i < n; ++i) {
        if (!support.visible(i, j) || std::abs(i - j) < 4) continue;
        std::vector<double> far;
        Index visible = 0;
        for (Index k = 0; k < n; ++k) {
          if (!support.visible(i, k)) continue;
          ++visible;
          if (std::abs(i - k) >= 4) far.push_back(a(i, k));
        }
        double mean = 0, squares = 0;
        for (const double x : far) mean += x / double(far.size());
        for (const double x : far) squares += (x - mean) * (x - mean) / double(far.size());
        ++count;
        mass += a(i, j);
        expected += mean;
        variance += squares;
        largest = std::max(largest, *std::max_element(far.begin(), far.end()));
        uniform += 1.0 / double(visible);
      }
      EXPECT_EQ(queries[j], count);
      EXPECT_NEAR(at[j], mass, 1e-13);
      EXPECT_NEAR(at[n + j], expected, 1e-13);
      EXPECT_NEAR(at[2 * n + j], variance, 1e-13);
      EXPECT_EQ(at[3 * n + j], largest);
      EXPECT_NEAR(at[4 * n + j], uniform, 1e-13);
    }
  }
}

}  // namespace
}  // namespace attnscope
