// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

double ratio_of(const RowMatrix<double>& a, Support support, Index window, bool drop_first) {
  RowScratch scratch;
  double ratio = 0.0;
  EXPECT_TRUE(local_global_ratio(view(a), false, support, window, drop_first, ratio, scratch));
  return ratio;
}

TEST(Locality, StarsIdentitiesAndUniformMaps) {
  const Index n = 20;
  Support causal;
  causal.kind = Support::Kind::causal;
  RowMatrix<double> star = RowMatrix<double>::Zero(n, n);
  star.col(0).setOnes();
  EXPECT_DOUBLE_EQ(ratio_of(star, causal, 8, false), 9.0 / 11.0);
  EXPECT_TRUE(std::isnan(ratio_of(star, causal, 8, true)));
  const RowMatrix<double> identity = RowMatrix<double>::Identity(n, n);
  EXPECT_TRUE(std::isinf(ratio_of(identity, causal, 0, false)));
  const RowMatrix<double> uniform = testing::uniform_causal(n);
  double far = 0.0;
  for (Index i = 3; i < n; ++i) far += double(i - 2) / double(i + 1);
  EXPECT_NEAR(ratio_of(uniform, causal, 2, false), (double(n) - far) / far, 1e-12);
}

TEST(Locality, AWindowBeyondTheMapHoldsEverything) {
  const RowMatrix<double> a = testing::random_attention(9, false, 1);
  EXPECT_TRUE(std::isinf(ratio_of(a, Support{}, 9, false)));
  EXPECT_TRUE(std::isinf(ratio_of(a, Support{}, 1000, true)));
}

// Sums entry by entry, in the order of the definition.
template <class Scalar>
double plain_ratio(const MatrixView<Scalar>& a, bool causal, Index window, bool drop_first) {
  double near = 0.0;
  double far = 0.0;
  for (Index i = 0; i < a.rows(); ++i) {
    for (Index j = drop_first ? 1 : 0; j < (causal ? i + 1 : a.cols()); ++j)
      (std::abs(i - j) <= window ? near : far) += static_cast<double>(a(i, j));
  }
  return near / far;
}

template <class Scalar>
void expect_plain_ratios() {
  RowScratch scratch;
  for (const Index n : {1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 25, 33, 64, 70}) {
    for (const bool causal : {false, true}) {
      const RowMatrix<Scalar> rows =
          testing::random_attention(n, causal, static_cast<unsigned>(n)).template cast<Scalar>();
      const RowMatrix<Scalar> columns = rows.transpose();
      for (const Index window : {0, 1, 5, 8, 20}) {
        for (const bool drop_first : {false, true}) {
          for (const MatrixView<Scalar>& a : {view(rows), matrix_view(columns.data(), n, 1, n)}) {
            const double plain = plain_ratio(a, causal, window, drop_first);
            for (const bool fast : {false, true}) {
              Support support;
              double ratio = 0.0;
              ASSERT_TRUE(
                  local_global_ratio(a, true, support, window, drop_first, ratio, scratch, fast));
              EXPECT_EQ(support.kind == Support::Kind::causal, causal && n >= 2);
              if (std::isfinite(plain)) {
                EXPECT_NEAR(ratio, plain, (fast ? 2e-6 : 1e-13) * plain)
                    << "n = " << n << ", window " << window << ", fast " << fast;
              } else {
                EXPECT_EQ(std::isnan(ratio), std::isnan(plain)) << "n = " << n;
                EXPECT_EQ(std::isinf(ratio), std::isinf(plain)) << "n = " << n;
              }
            }
          }
        }
      }
    }
  }
}

TEST(Locality, EveryTypeSizeAndWindowAsTheDefinitionSumsIt) {
  expect_plain_ratios<float>();
  expect_plain_ratios<double>();
  expect_plain_ratios<Eigen::half>();
  expect_plain_ratios<Eigen::bfloat16>();
}

TEST(Locality, ANumberThatIsNotFiniteIsSeenAnywhere) {
  RowScratch scratch;
  const Index n = 17;
  for (const bool causal : {false, true}) {
    const RowMatrix<float> good = testing::random_attention(n, causal, 3).cast<float>();
    for (Index place = 0; place < n * n; ++place) {
      RowMatrix<float> a = good;
      a.data()[place] = std::numeric_limits<float>::quiet_NaN();
      for (const bool drop_first : {false, true}) {
        for (const bool fast : {false, true}) {
          Support support;
          double ratio = 0.0;
          EXPECT_FALSE(
              local_global_ratio(view(a), true, support, 8, drop_first, ratio, scratch, fast))
              << "entry " << place;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
