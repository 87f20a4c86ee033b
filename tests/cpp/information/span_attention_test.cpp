// SPDX-License-Identifier: MIT
#include "kernels/information/span_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

template <class Scalar>
SpanAttention of(const MatrixView<Scalar>& attention, Index start, Index stop,
                 const bool* special = nullptr) {
  Support support;
  SpanAttention span;
  EXPECT_TRUE(span_attention(attention, true, support, start, stop, special, 1, span));
  return span;
}

TEST(SpanAttention, UniformCausalAttentionByHand) {
  const RowMatrix<double> a = testing::uniform_causal(9);
  const bool special[9] = {true};
  const SpanAttention span = of(view(a), 3, 5, special);
  EXPECT_DOUBLE_EQ(span.share, (1.0 / 4 + 2.0 / 5) / 2);
  EXPECT_DOUBLE_EQ(span.uniform, (1.0 / 4 + 2.0 / 5) / 2);
  EXPECT_EQ(span.boost, 1.0);
  EXPECT_DOUBLE_EQ(span.diagonal, (1.0 / 4 + 1.0 / 5) / 2);
  EXPECT_DOUBLE_EQ(span.special, (1.0 / 4 + 1.0 / 5) / 2);
  EXPECT_DOUBLE_EQ(span.context, (2.0 / 4 + 2.0 / 5) / 2);
  EXPECT_DOUBLE_EQ(span.received, (2.0 / 6 + 2.0 / 7 + 2.0 / 8 + 2.0 / 9) / 4);
  EXPECT_DOUBLE_EQ(span.received_uniform, span.received);
}

TEST(SpanAttention, UniformFullAttentionByHand) {
  const RowMatrix<double> a = RowMatrix<double>::Constant(8, 8, 1.0 / 8);
  const SpanAttention span = of(view(a), 2, 5);
  EXPECT_DOUBLE_EQ(span.share, 3.0 / 8);
  EXPECT_EQ(span.boost, 1.0);
  EXPECT_DOUBLE_EQ(span.diagonal, 1.0 / 8);
  EXPECT_EQ(span.special, 0.0);
  EXPECT_DOUBLE_EQ(span.context, 5.0 / 8);
  EXPECT_DOUBLE_EQ(span.received, 3.0 / 8);
}

TEST(SpanAttention, AttentionToItselfAloneAndASpanAtTheEnd) {
  const RowMatrix<double> identity = RowMatrix<double>::Identity(9, 9);
  EXPECT_EQ(of(view(identity), 2, 4).share, 1.0);
  EXPECT_EQ(of(view(identity), 2, 4).context, 0.0);
  EXPECT_TRUE(std::isnan(of(view(identity), 8, 9).received));
  const RowMatrix<double> of_first = RowMatrix<double>::Ones(1, 1);
  const SpanAttention span = of(view(of_first), 0, 1);
  EXPECT_EQ(span.share, 1.0);
  EXPECT_EQ(span.uniform, 1.0);
  EXPECT_EQ(span.boost, 1.0);
  EXPECT_TRUE(std::isnan(span.received));
  EXPECT_TRUE(std::isnan(span.received_uniform));
}

template <class Scalar>
void expect_sums_of_loops() {
  for (const bool causal : {false, true}) {
    for (const bool masked : {false, true}) {
      const Index n = 19;
      const RowMatrix<Scalar> a = testing::random_attention(n, causal, 5).template cast<Scalar>();
      const auto mask = std::make_unique<bool[]>(static_cast<std::size_t>(n * n));
      for (Index k = 0; k < n * n; ++k)
        mask[static_cast<std::size_t>(k)] = (k * 7) % 5 != 0 && k / n != 11;
      bool special[19] = {};
      special[0] = special[6] = special[17] = true;
      Support support = testing::masked(mask.get(), n);
      for (const auto& [start, stop] :
           {std::pair<Index, Index>{0, 1}, {4, 8}, {10, 13}, {15, 19}, {0, 19}}) {
        SpanAttention span;
        ASSERT_TRUE(span_attention(view(a), !masked, support, start, stop, special, 1, span));
        if (!masked) support.kind = causal ? Support::Kind::causal : Support::Kind::full;
        long double sums[6] = {};
        Index queries = 0;
        for (Index i = 0; i < n; ++i) {
          long double mass = 0.0;
          Index visible_in_span = 0;
          Index visible = 0;
          for (Index j = 0; j < n; ++j) {
            if (!support.visible(i, j)) continue;
            ++visible;
            const auto x = static_cast<long double>(static_cast<double>(a(i, j)));
            const bool in = start <= j && j < stop;
            mass += in ? x : 0.0L;
            visible_in_span += in ? 1 : 0;
            if (start <= i && i < stop && !in) sums[special[j] ? 2 : 3] += x;
          }
          const long double even =
              visible_in_span == 0 ? 0.0L : static_cast<long double>(visible_in_span) / visible;
          if (start <= i && i < stop) {
            sums[0] += mass;
            sums[1] += even;
          } else if (visible_in_span > 0) {
            ++queries;
            sums[4] += mass;
            sums[5] += even;
          }
        }
        const auto m = static_cast<long double>(stop - start);
        EXPECT_NEAR(span.share, static_cast<double>(sums[0] / m), 1e-15);
        EXPECT_NEAR(span.uniform, static_cast<double>(sums[1] / m), 1e-15);
        EXPECT_NEAR(span.special, static_cast<double>(sums[2] / m), 1e-15);
        EXPECT_NEAR(span.context, static_cast<double>(sums[3] / m), 2e-15);
        if (queries == 0) {
          EXPECT_TRUE(std::isnan(span.received));
          continue;
        }
        EXPECT_NEAR(span.received, static_cast<double>(sums[4] / queries), 1e-15);
        EXPECT_NEAR(span.received_uniform, static_cast<double>(sums[5] / queries), 1e-15);
      }
    }
  }
}

TEST(SpanAttention, EverySumIsThatOfALoopForEveryTypeAndSupport) {
  expect_sums_of_loops<double>();
  expect_sums_of_loops<float>();
  expect_sums_of_loops<Eigen::half>();
  expect_sums_of_loops<Eigen::bfloat16>();
}

TEST(SpanAttention, StridesAndAMarkOnASharedFlagChangeNothing) {
  const RowMatrix<double> a = testing::random_attention(12, false, 3);
  const RowMatrix<double> turned = a.transpose();
  const bool special[12] = {true,  false, false, false, false, false,
                            false, false, false, false, true,  false};
  const SpanAttention of_first = of(view(a), 4, 7, special);
  const SpanAttention other =
      of(matrix_view(turned.data(), 12, Index{1}, Index{12}), 4, 7, special);
  EXPECT_EQ(of_first.share, other.share);
  EXPECT_EQ(of_first.special, other.special);
  EXPECT_EQ(of_first.context, other.context);
  EXPECT_EQ(of_first.received, other.received);
  const bool all[1] = {true};
  Support support;
  SpanAttention marked;
  ASSERT_TRUE(span_attention(view(a), true, support, 4, 7, all, 0, marked));
  EXPECT_EQ(marked.context, 0.0);
  EXPECT_NEAR(marked.special, 1.0 - marked.share, 1e-15);
}

TEST(SpanAttention, AMapThatIsNotFiniteIsRefusedWhateverItsSupport) {
  for (const double bad :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (const bool automatic : {false, true}) {
      RowMatrix<double> a = testing::uniform_causal(7);
      a(6, 0) = bad;
      Support support{.kind = Support::Kind::causal};
      SpanAttention span{};
      span.share = 5.0;
      EXPECT_FALSE(span_attention(view(a), automatic, support, 2, 3, nullptr, 0, span));
      EXPECT_EQ(span.share, 5.0);
    }
  }
}

}  // namespace
}  // namespace attnscope
