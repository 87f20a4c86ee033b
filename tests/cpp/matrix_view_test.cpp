// SPDX-License-Identifier: MIT
#include "kernels/base/matrix_view.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "kernels/base/support.h"
#include "matrices.h"

namespace attnscope {
namespace {

TEST(MatrixView, ReadsRowsAndTransposeInPlace) {
  const std::vector<float> data = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto rows = matrix_view(data.data(), 3, 3, 1);
  const auto transposed = matrix_view(data.data(), 3, 1, 3);
  EXPECT_EQ(rows(1, 2), 6);
  EXPECT_EQ(transposed(1, 2), 8);
  EXPECT_EQ(rows.data(), data.data());
}

TEST(MatrixView, FindsEveryKindOfNonFiniteEntryAnywhere) {
  for (Index n : {1, 5, 16, 17, 40}) {
    for (double bad : {std::numeric_limits<double>::quiet_NaN(),
                       std::numeric_limits<double>::infinity(),
                       -std::numeric_limits<double>::infinity()}) {
      testing::RowMatrix<double> a = testing::random_attention(n, false, 1);
      EXPECT_TRUE(all_finite(testing::view(a)));
      a(n - 1, n / 2) = bad;
      EXPECT_FALSE(all_finite(testing::view(a))) << "n = " << n << ", entry " << bad;
      EXPECT_FALSE(all_finite(matrix_view(a.data(), n, 1, n))) << "transposed, n = " << n;
    }
  }
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
  const testing::RowMatrix<double> one = testing::RowMatrix<double>::Ones(1, 1);
  EXPECT_EQ(auto_support(testing::view(one)).kind, Support::Kind::full);
}

}  // namespace
}  // namespace attnscope
