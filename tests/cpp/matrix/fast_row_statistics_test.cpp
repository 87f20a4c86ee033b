// SPDX-License-Identifier: MIT
#include "matrix/row_groups/fast_row_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "matrices.h"
#include "matrix/row_statistics.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

template <class Scalar>
bool sees(const MatrixView<Scalar>& a, const Support& support, Index i, Index j) {
  return j < support.end(i, a.cols());
}

// Sums of columns and entropies to their bounds; sums of doubles to the last bit, in the order of
// rows.
template <class Scalar>
void expect_plain_numbers(const MatrixView<Scalar>& a, const Support& support,
                          const std::vector<double>& sums, const std::vector<double>& entropy) {
  const double error = std::is_same_v<Scalar, double> ? 0.0 : kErrorOfFastSums;
  for (Index j = 0; j < a.cols(); ++j) {
    double sum = 0.0;
    for (Index i = 0; i < a.rows(); ++i) {
      if (sees(a, support, i, j)) sum += static_cast<double>(a(i, j));
    }
    EXPECT_NEAR(sums[j], sum, error * sum) << "key " << j;
  }
  for (Index i = 0; i < a.rows(); ++i) {
    double terms = 0.0;
    for (Index j = 0; j < a.cols(); ++j) {
      const auto x = static_cast<double>(a(i, j));
      if (x > 0.0 && sees(a, support, i, j)) terms -= x * std::log(x);
    }
    EXPECT_NEAR(entropy[i], terms, 2e-6 * terms) << "query " << i;
  }
}

template <class Scalar>
void expect_plain_numbers_of_all_sizes() {
  RowScratch scratch;
  for (const Index n : {1, 2, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 65, 100, 130, 300, 520}) {
    for (const bool causal : {false, true}) {
      const RowMatrix<Scalar> square =
          testing::random_attention(n, causal, static_cast<unsigned>(n), 3.0)
              .template cast<Scalar>();
      // the last queries, which stand at the last keys
      for (const Index rows : {n, (n + 1) / 2, std::min<Index>(n, 3), Index{1}}) {
        const MatrixView<Scalar> a =
            matrix_view(square.data() + (n - rows) * n, rows, n, n, Index{1});
        std::vector<double> entropy(rows), alone(rows);
        Support support;
        support.shift = n - rows;
        const bool is_seen_causal = is_causal(a, support.shift);
        ASSERT_TRUE(fast_row_statistics(a, true, support, entropy.data(), scratch));
        EXPECT_EQ(support.kind == Support::Kind::causal, is_seen_causal) << "n = " << n;
        expect_plain_numbers(a, support, scratch.sums, entropy);
        const std::vector<double> sums = scratch.sums;
        ASSERT_TRUE(fast_row_statistics(a, true, support, nullptr, scratch));
        EXPECT_EQ(scratch.sums, sums) << "without entropies, n = " << n;
        ASSERT_TRUE(fast_entropies(a, true, support, alone.data(), scratch));
        EXPECT_EQ(alone, entropy) << "n = " << n;
        // A causal support hides entries of a full map, whatever they are.
        for (const auto kind : {Support::Kind::causal, Support::Kind::full}) {
          support.kind = kind;
          ASSERT_TRUE(fast_row_statistics(a, false, support, entropy.data(), scratch));
          expect_plain_numbers(a, support, scratch.sums, entropy);
          ASSERT_TRUE(fast_entropies(a, false, support, alone.data(), scratch));
          EXPECT_EQ(alone, entropy) << "n = " << n;
        }
      }
    }
  }
}

TEST(FastRowStatistics, AreThePlainNumbersOfFloats) { expect_plain_numbers_of_all_sizes<float>(); }

TEST(FastRowStatistics, AreThePlainNumbersOfHalves) {
  expect_plain_numbers_of_all_sizes<Eigen::half>();
  expect_plain_numbers_of_all_sizes<Eigen::bfloat16>();
}

TEST(FastRowStatistics, AreThePlainNumbersOfDoubles) {
  expect_plain_numbers_of_all_sizes<double>();
}

TEST(FastRowStatistics, SeeASingleEntryBehindAnyQuery) {
  RowScratch scratch;
  for (const Index n : {17, 33, 40, 70}) {
    const RowMatrix<float> causal = testing::random_attention(n, true, 1).cast<float>();
    for (Index i = 0; i + 1 < n; ++i) {
      for (Index j = i + 1; j < n; ++j) {
        for (const float entry : {1e-30f, std::numeric_limits<float>::quiet_NaN(), -0.0f}) {
          RowMatrix<float> a = causal;
          a(i, j) = entry;
          std::vector<double> entropy(n);
          Support support;
          EXPECT_EQ(fast_row_statistics(view(a), true, support, entropy.data(), scratch),
                    !std::isnan(entry));
          EXPECT_EQ(support.kind == Support::Kind::causal, entry == 0.0f) << i << ", " << j;
          Support of_map;
          of_map.kind = Support::Kind::causal;
          EXPECT_EQ(fast_row_statistics(view(a), false, of_map, entropy.data(), scratch),
                    !std::isnan(entry));
        }
      }
    }
  }
}

// 1 and −1 and a small number beside them: what float32 loses is what the exact sums hold.
TEST(FastRowStatistics, AddExactlyWhereAnEntryIsNegative) {
  RowScratch scratch;
  for (const bool with_entropies : {false, true}) {
    for (const Index n : {16, 40}) {
      RowMatrix<float> a = RowMatrix<float>::Constant(n, n, 1e-9f);
      a.row(1).setConstant(1.0f);
      a.row(2).setConstant(-1.0f);
      std::vector<double> entropy(n);
      Support support;
      double* out = with_entropies ? entropy.data() : nullptr;
      ASSERT_TRUE(fast_row_statistics(view(a), true, support, out, scratch));
      double sum = 0.0;
      for (Index i = 0; i < n; ++i) sum += static_cast<double>(a(i, 0));
      for (Index j = 0; j < n; ++j) EXPECT_EQ(scratch.sums[j], sum) << "key " << j;
    }
  }
}

// Finite entries whose sum float32 cannot hold.
TEST(FastRowStatistics, AddLargeEntriesInDoubles) {
  RowScratch scratch;
  const RowMatrix<float> a = RowMatrix<float>::Constant(40, 40, 3e38f);
  Support support;
  ASSERT_TRUE(fast_row_statistics(view(a), true, support, nullptr, scratch));
  EXPECT_DOUBLE_EQ(scratch.sums[7], 40.0 * static_cast<double>(3e38f));
}

// Shorter than any vector of float32 numbers.
TEST(FastRowStatistics, AreExactInTheShortestRows) {
  RowScratch scratch;
  for (const Index n : {1, 2, 3}) {
    for (const bool causal : {false, true}) {
      const RowMatrix<float> a = testing::random_attention(n, causal, 5, 3.0).cast<float>();
      std::vector<double> exact(n), entropy(n), alone(n);
      Support support;
      ASSERT_TRUE(row_statistics(view(a), true, support, exact.data(), scratch));
      ASSERT_TRUE(fast_row_statistics(view(a), true, support, entropy.data(), scratch));
      ASSERT_TRUE(fast_entropies(view(a), true, support, alone.data(), scratch));
      EXPECT_EQ(entropy, exact) << "n = " << n;
      EXPECT_EQ(alone, exact) << "n = " << n;
    }
  }
}

}  // namespace
}  // namespace attnscope
