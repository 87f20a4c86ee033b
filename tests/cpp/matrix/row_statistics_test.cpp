// SPDX-License-Identifier: MIT
#include "matrix/row_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "matrices.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// Column sums, entry by entry in the order of rows, of what queries see.
template <class Scalar>
std::vector<double> plain_sums(const MatrixView<Scalar>& a, bool causal, Index shift) {
  std::vector<double> sums(a.cols(), 0.0);
  for (Index i = 0; i < a.rows(); ++i) {
    for (Index j = 0; j < a.cols(); ++j) {
      if (!causal || j <= i + shift) sums[j] += static_cast<double>(a(i, j));
    }
  }
  return sums;
}

template <class Scalar>
void expect_plain_sums() {
  for (const Index n : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 100, 128, 140, 200}) {
    for (const bool causal : {false, true}) {
      const RowMatrix<Scalar> square =
          testing::random_attention(n, causal, static_cast<unsigned>(n)).template cast<Scalar>();
      const RowMatrix<Scalar> turned = square.transpose();
      // Between the entries of other matrices, as those of a head are where heads lie together.
      RowMatrix<Scalar> apart = RowMatrix<Scalar>::Constant(n, 3 * n, Scalar(7));
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < n; ++j) apart(i, 3 * j) = square(i, j);
      }
      for (const MatrixView<Scalar>& all_rows :
           {view(square), matrix_view(turned.data(), n, 1, n),
            matrix_view(apart.data(), n, n, 3 * n, Index{3})}) {
        for (const Index rows : {n, (n + 1) / 2}) {
          // The last `rows` queries, which stand at the last keys.
          const Index shift = n - rows;
          const MatrixView<Scalar> a =
              matrix_view(all_rows.data() + shift * all_rows.outerStride(), rows, n,
                          all_rows.outerStride(), all_rows.innerStride());
          RowScratch scratch;
          Support support;
          support.shift = shift;
          ASSERT_TRUE(row_statistics(a, true, support, nullptr, scratch));
          EXPECT_EQ(support.kind == Support::Kind::causal, is_causal(a, shift)) << "n = " << n;
          EXPECT_EQ(scratch.sums, plain_sums(a, causal, shift)) << "n = " << n;
          std::vector<double> entropy(rows);
          Support again;
          again.shift = shift;
          ASSERT_TRUE(row_statistics(a, true, again, entropy.data(), scratch));
          EXPECT_EQ(again.kind, support.kind);
          EXPECT_EQ(scratch.sums, plain_sums(a, causal, shift)) << "with entropies, n = " << n;
        }
      }
    }
  }
}

TEST(RowStatistics, SumsOfColumnsToTheLastBit) {
  expect_plain_sums<float>();
  expect_plain_sums<double>();
  expect_plain_sums<Eigen::half>();
  expect_plain_sums<Eigen::bfloat16>();
}

// Sums of float16 entries in [0, 1] and of bfloat16 entries without a sign have ways of their own;
// one entry beyond them sends the whole map another way, which has to give the same sums.
template <class Scalar>
void expect_sums_of_any_entries() {
  const double smallest = static_cast<double>(std::numeric_limits<Scalar>::denorm_min());
  for (const Index n : {16, 33, 64, 100, 300}) {
    for (const bool causal : {false, true}) {
      for (const double value : {-0.75, -0.0, 1.0, 1.5, 3000.0, smallest, -smallest}) {
        RowMatrix<Scalar> a = testing::random_attention(n, causal, 3).template cast<Scalar>();
        for (Index i = 1; i < n; i += 7) a(i, i / 2) = static_cast<Scalar>(value);
        RowScratch scratch;
        Support support;
        ASSERT_TRUE(row_statistics(view(a), true, support, nullptr, scratch));
        EXPECT_EQ(scratch.sums, plain_sums(view(a), causal, 0)) << "n = " << n << ", " << value;
      }
    }
  }
}

TEST(RowStatistics, SumsOfEntriesOfAnySignAndSize) {
  expect_sums_of_any_entries<float>();
  expect_sums_of_any_entries<double>();
  expect_sums_of_any_entries<Eigen::half>();
  expect_sums_of_any_entries<Eigen::bfloat16>();
}

// Whether a map with one changed entry is recognised, wherever that entry is.
template <class Scalar>
void expect_every_entry_to_count(Index n) {
  const RowMatrix<Scalar> good = testing::random_attention(n, true, 5).template cast<Scalar>();
  for (Index place = 0; place < n * n; ++place) {
    const bool is_behind = place % n > place / n;
    for (const double value : {1e-3, std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::infinity()}) {
      RowMatrix<Scalar> a = good;
      a.data()[place] = static_cast<Scalar>(value);
      RowScratch scratch;
      Support support;
      const bool finite = row_statistics(view(a), true, support, nullptr, scratch);
      EXPECT_EQ(finite, std::isfinite(value)) << "entry " << place;
      if (!finite) continue;
      EXPECT_EQ(support.kind == Support::Kind::full, is_behind) << "entry " << place;
      EXPECT_EQ(is_causal(view(a)), !is_behind) << "entry " << place;
      EXPECT_EQ(scratch.sums, plain_sums(view(a), !is_behind, 0)) << "entry " << place;
    }
  }
}

TEST(RowStatistics, OneEntryDecidesWhereverItIs) {
  for (const Index n : {2, 9, 20, 35, 70}) {
    expect_every_entry_to_count<float>(n);
    expect_every_entry_to_count<Eigen::bfloat16>(n);
  }
  expect_every_entry_to_count<double>(35);
  expect_every_entry_to_count<Eigen::half>(35);
}

TEST(RowStatistics, AZeroWithASignIsHiddenToo) {
  RowMatrix<float> a = testing::random_attention(40, true, 7).cast<float>();
  a(3, 30) = -0.0f;
  RowScratch scratch;
  Support support;
  ASSERT_TRUE(row_statistics(view(a), true, support, nullptr, scratch));
  EXPECT_EQ(support.kind, Support::Kind::causal);
}

template <class Scalar>
void expect_separated() {
  for (const Index count : {1, 3, 8, 11, 16}) {
    for (const Index n : {1, 5, 8, 13, 24}) {
      const Index rows = n + 2;
      RowMatrix<Scalar> together(rows, n * count);
      for (Index k = 0; k < together.size(); ++k)
        together.data()[k] = static_cast<Scalar>(0.25f * static_cast<float>(k % 97));
      const Index spacing = rows * n + 3;
      std::vector<Scalar> apart(count * spacing, Scalar(-1));
      separate(matrix_view(together.data(), rows, n, n * count, count), count, spacing,
               apart.data());
      for (Index m = 0; m < count; ++m) {
        for (Index i = 0; i < rows; ++i) {
          for (Index j = 0; j < n; ++j)
            ASSERT_EQ(apart[m * spacing + i * n + j], together(i, j * count + m));
        }
        for (Index k = rows * n; k < spacing; ++k) ASSERT_EQ(apart[m * spacing + k], Scalar(-1));
      }
    }
  }
}

TEST(RowStatistics, MatricesSideBySideComeApart) {
  expect_separated<float>();
  expect_separated<double>();
  expect_separated<Eigen::half>();
  expect_separated<Eigen::bfloat16>();
}

}  // namespace
}  // namespace attnscope
