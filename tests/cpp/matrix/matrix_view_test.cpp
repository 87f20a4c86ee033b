// SPDX-License-Identifier: MIT
#include "matrix/matrix_view.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "matrices.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

TEST(MatrixView, ReadsRowsAndTransposeInPlace) {
  const std::vector<float> data = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto rows = matrix_view(data.data(), 3, 3, 1);
  const auto transposed = matrix_view(data.data(), 3, 1, 3);
  EXPECT_EQ(rows(1, 2), 6);
  EXPECT_EQ(transposed(1, 2), 8);
  EXPECT_EQ(rows.data(), data.data());
}

template <class Scalar>
void expect_every_bad_entry_found() {
  for (Index n : {1, 5, 16, 17, 40}) {
    for (double bad :
         {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
          -std::numeric_limits<double>::infinity()}) {
      testing::RowMatrix<Scalar> a = testing::random_attention(n, false, 1).cast<Scalar>();
      EXPECT_TRUE(all_finite(testing::view(a)));
      a(n - 1, n / 2) = static_cast<Scalar>(bad);
      EXPECT_FALSE(all_finite(testing::view(a))) << "n = " << n << ", entry " << bad;
      EXPECT_FALSE(all_finite(matrix_view(a.data(), n, 1, n))) << "transposed, n = " << n;
    }
  }
}

TEST(MatrixView, FindsEveryKindOfNonFiniteEntryAnywhere) {
  expect_every_bad_entry_found<double>();
  expect_every_bad_entry_found<float>();
  expect_every_bad_entry_found<Eigen::half>();
  expect_every_bad_entry_found<Eigen::bfloat16>();
}

template <class Scalar>
void expect_one_read_to_say_both() {
  for (const Index n : {1, 2, 5, 16, 17, 40}) {
    for (const bool causal : {false, true}) {
      const testing::RowMatrix<Scalar> good =
          testing::random_attention(n, causal, static_cast<unsigned>(n)).template cast<Scalar>();
      for (Index place = -1; place < n * n; ++place) {
        for (const double bad : {1e-3, -0.0, std::numeric_limits<double>::quiet_NaN(),
                                 -std::numeric_limits<double>::infinity()}) {
          testing::RowMatrix<Scalar> a = good;
          if (place >= 0) a.data()[place] = static_cast<Scalar>(bad);
          for (const bool turned : {false, true}) {
            const auto matrix = matrix_view(a.data(), n, turned ? 1 : n, turned ? n : 1);
            MatrixReading reading{true, n >= 2};
            read_lines(matrix, 0, n, reading);
            ASSERT_EQ(reading.finite, all_finite(matrix)) << "n = " << n << ", entry " << place;
            ASSERT_EQ(reading.causal, reading.finite && is_causal(matrix))
                << "n = " << n << ", entry " << place;
          }
        }
      }
    }
  }
}

TEST(MatrixView, OneReadSaysWhatTwoSay) {
  expect_one_read_to_say_both<double>();
  expect_one_read_to_say_both<float>();
  expect_one_read_to_say_both<Eigen::half>();
  expect_one_read_to_say_both<Eigen::bfloat16>();
}

TEST(MatrixView, LargestFiniteValuesAreFinite) {
  testing::RowMatrix<float> a =
      testing::RowMatrix<float>::Constant(33, 33, std::numeric_limits<float>::max());
  EXPECT_TRUE(all_finite(testing::view(a)));
}

TEST(Support, AutoJudgesTheUpperTriangle) {
  testing::RowMatrix<double> a = testing::random_attention(6, true, 2);
  EXPECT_EQ(auto_support(testing::view(a)).kind, Support::Kind::causal);
  a(2, 5) = 1e-300;
  EXPECT_EQ(auto_support(testing::view(a)).kind, Support::Kind::full);
  const testing::RowMatrix<double> single = testing::RowMatrix<double>::Ones(1, 1);
  EXPECT_EQ(auto_support(testing::view(single)).kind, Support::Kind::full);
}

template <class Scalar>
void expect_judged_entry_by_entry() {
  for (Index n : {2, 3, 9, 40}) {
    testing::RowMatrix<Scalar> a = testing::random_attention(n, true, 5).cast<Scalar>();
    const testing::RowMatrix<Scalar> turned = a.transpose();
    a(0, n - 1) = static_cast<Scalar>(-0.0);
    EXPECT_TRUE(is_causal(testing::view(a))) << n;
    EXPECT_TRUE(is_causal(matrix_view(turned.data(), n, 1, n))) << n;
    EXPECT_FALSE(is_causal(testing::view(turned))) << n;
    for (Index i = 0; i < n; ++i) {
      for (Index j = i + 1; j < n; ++j) {
        testing::RowMatrix<Scalar> b = a;
        b(i, j) = static_cast<Scalar>(6e-8);  // the smallest float16 is 6e-8
        EXPECT_FALSE(is_causal(testing::view(b))) << n << " " << i << " " << j;
        const testing::RowMatrix<Scalar> t = b.transpose();
        EXPECT_FALSE(is_causal(matrix_view(t.data(), n, 1, n))) << n << " " << i << " " << j;
      }
    }
  }
}

TEST(Support, AutoJudgesEveryLayoutAndType) {
  expect_judged_entry_by_entry<float>();
  expect_judged_entry_by_entry<double>();
  expect_judged_entry_by_entry<Eigen::half>();
  expect_judged_entry_by_entry<Eigen::bfloat16>();
}

TEST(Widen, ScalesByAPowerOfTwoWhateverRowAndSignTheLargestHas) {
  // Rows of any length beside a pair of vectors; the largest entry in each place.
  for (Index n : {1, 2, 7, 8, 9, 16, 17}) {
    for (Index place = 0; place < n * n; ++place) {
      for (double largest : {-3e200, 3e200, -3e-200}) {
        RowMatrix<double> a = RowMatrix<double>::Constant(n, n, std::abs(largest) * 1e-3);
        a.data()[place] = largest;
        RowMatrix<double> out(n, n);
        const double scale = widen(view(a), out.data(), n);
        int exponent = 0;
        EXPECT_EQ(std::frexp(scale, &exponent), 0.5);
        EXPECT_EQ(out, (a * scale).eval());
        const double scaled = out.cwiseAbs().maxCoeff();
        EXPECT_TRUE(scaled >= 0.5 && scaled < 1.0) << n << " " << place << " " << scaled;
      }
    }
  }
  const RowMatrix<double> plain = testing::random_attention(5, false, 1);
  RowMatrix<double> out(5, 5);
  EXPECT_EQ(widen(view(plain), out.data(), 5), 1.0);
  EXPECT_EQ(out, plain);
}

}  // namespace
}  // namespace attnscope
