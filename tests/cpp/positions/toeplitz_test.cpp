// SPDX-License-Identifier: MIT
#include "kernels/positions/toeplitz.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "linalg/mask_only.h"
#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

constexpr double kInf = std::numeric_limits<double>::infinity();

using Numbers = std::vector<double>;

Numbers numbers(Index size) { return Numbers(static_cast<std::size_t>(size), kNaN); }

struct Split {
  explicit Split(const RowMatrix<double>& s, bool late = true, const double* weights = nullptr)
      : m(split_rows(s.rows(), late)),
        profile(numbers(m)),
        residual(numbers(m * m)),
        row(numbers(m)),
        variance(numbers(m)),
        first(numbers(m)),
        lse(numbers(m)) {
    ToeplitzWorkspace workspace;
    finite = toeplitz_split(
        view(s), late, weights, m,
        {profile.data(), residual.data(), row.data(), variance.data(), first.data(), lse.data(), m},
        workspace);
  }
  double r(Index i, Index j) const { return residual[static_cast<std::size_t>(i * m + j)]; }
  Index m;
  Numbers profile, residual, row, variance, first, lse;
  bool finite = false;
};

struct Mask {
  explicit Mask(const RowMatrix<double>& s, bool body = false, double sink = -kInf)
      : m(split_rows(s.rows(), true)),
        lse(numbers(m)),
        cut(numbers(m)),
        share(numbers(m)),
        attention(numbers(m * m)) {
    std::vector<std::int64_t> queries(static_cast<std::size_t>(m));
    std::iota(queries.begin(), queries.end(), 0);
    MaskOnlyWorkspace workspace;
    finite = mask_only(view(s), sink, queries.data(), m, body, lse.data(), cut.data(), share.data(),
                       attention.data(), m, workspace);
  }
  double a(Index i, Index j) const { return attention[static_cast<std::size_t>(i * m + j)]; }
  Index m;
  Numbers lse, cut, share, attention;
  bool finite = false;
};

RowMatrix<double> random_scores(Index n, double scale, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  RowMatrix<double> s = RowMatrix<double>::Constant(n, n, kNaN);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j <= i; ++j) s(i, j) = scale * normal(generator);
  }
  return s;
}

TEST(Toeplitz, EqualScoresAreCutToTheShareOfKeysThatAreLeft) {
  const Mask measured(RowMatrix<double>::Constant(24, 24, -3.0));
  for (Index i = 0; i < 12; ++i) {
    const auto k = static_cast<std::size_t>(i);
    const double visible = static_cast<double>(i + 1);
    EXPECT_NEAR(measured.cut[k], std::log(12.0 / visible), 1e-14);
    EXPECT_NEAR(measured.share[k], 1.0 - visible / 12.0, 1e-14);
    EXPECT_NEAR(measured.lse[k], -3.0 + std::log(visible), 1e-14);
    for (Index j = 0; j < 12; ++j)
      EXPECT_NEAR(measured.a(i, j), j <= i ? 1.0 / visible : 0.0, 1e-15);
  }
}

TEST(Toeplitz, AProfileAndRowConstantsLeaveNoResidual) {
  RowMatrix<double> s = random_scores(20, 1.0, 3);
  const RowMatrix<double> profile = s;
  const RowMatrix<double> other = random_scores(20, 9.0, 4);
  for (Index i = 0; i < 20; ++i) {
    for (Index j = 0; j <= i; ++j) s(i, j) = profile(i - j, 0) + other(i, 0);
  }
  const Split measured(s);
  for (std::size_t i = 1; i < 10; ++i) {
    EXPECT_NEAR(measured.first[i], 0.0, 1e-12);
    if (i >= 2) {
      EXPECT_NEAR(measured.variance[i], 0.0, 1e-12);
    }
  }
  EXPECT_TRUE(std::isnan(measured.variance[1]));
}

TEST(Toeplitz, OneResidualIsWhatItIs) {
  RowMatrix<double> s = RowMatrix<double>::Zero(8, 8);
  s(3, 1) = 3.0;
  s(3, 0) = 2.0;
  const Split measured(s);
  EXPECT_DOUBLE_EQ(measured.row[3], 1.0);
  EXPECT_DOUBLE_EQ(measured.variance[3], 2.0);
  EXPECT_DOUBLE_EQ(measured.first[3], 1.0);
  EXPECT_DOUBLE_EQ(measured.r(3, 1), 3.0);
  EXPECT_TRUE(std::isnan(measured.r(1, 3)));
  Numbers weights(16, 1.0);
  weights[3 * 4 + 1] = 0.0;
  const Split weighted(s, true, weights.data());
  EXPECT_DOUBLE_EQ(weighted.row[3], 0.0);
  EXPECT_DOUBLE_EQ(weighted.variance[3], 0.0);
  EXPECT_DOUBLE_EQ(weighted.first[3], 1.0);
}

TEST(Toeplitz, NoScoreIsTooLarge) {
  for (const double scale : {1.0, 1000.0, 1e5}) {
    const Index n = 37;
    const RowMatrix<double> s = random_scores(n, scale, 5);
    const Mask measured(s, false, 0.5);
    const Index m = n / 2;
    for (Index i = 0; i < m; ++i) {
      long double lse = 0.0;
      Numbers expected(static_cast<std::size_t>(m), 0.0);
      for (Index r = m; r < 2 * m; ++r) {
        long double top = 0.5;
        for (Index d = 0; d <= i; ++d) top = std::max<long double>(top, s(r, r - d));
        long double total = std::exp(0.5L - top);
        for (Index d = 0; d <= i; ++d) total += std::exp(s(r, r - d) - top);
        lse += top + std::log(total);
        for (Index d = 0; d <= i; ++d) {
          expected[static_cast<std::size_t>(i - d)] +=
              double(std::exp(s(r, r - d) - top) / total / m);
        }
      }
      EXPECT_NEAR(measured.lse[static_cast<std::size_t>(i)], double(lse / m), 1e-13 * scale);
      for (Index j = 0; j < m; ++j)
        EXPECT_NEAR(measured.a(i, j), expected[static_cast<std::size_t>(j)], 1e-13);
    }
  }
}

// Rows whose nearest key lies far below their largest score stand beside rows where it does not, so
// many that the logarithm of their products is taken more than once.
TEST(Toeplitz, RowsWithAFarNearestKeyAreSummedLikeTheOthers) {
  const Index n = 61, m = n / 2;
  for (const double depth : {0.0, 100.0, 127.0, 129.0, 3000.0}) {
    RowMatrix<double> s = random_scores(n, 3.0, 8);
    for (Index r = m; r < 2 * m; ++r) {
      if (r % 3 == 0) s(r, r) -= depth;
      if (r % 5 == 0) s(r, r - 2) += 2.0 * depth;
    }
    const Mask measured(s);
    std::vector<long double> mean(static_cast<std::size_t>(m), 0.0L), visible(mean);
    for (Index r = m; r < 2 * m; ++r) {
      std::vector<long double> sums;
      long double top = -kInf, total = 0.0L;
      for (Index d = 0; d < m; ++d) {
        const long double higher = std::max<long double>(top, s(r, r - d));
        total = total * std::exp(top - higher) + std::exp(s(r, r - d) - higher);
        top = higher;
        sums.push_back(top + std::log(total));
      }
      for (std::size_t i = 0; i < sums.size(); ++i) {
        mean[i] += sums[i] / m;
        visible[i] += std::exp(sums[i] - sums.back()) / m;
      }
    }
    for (std::size_t i = 0; i < mean.size(); ++i) {
      EXPECT_NEAR(measured.lse[i], double(mean[i]), 1e-13 * (1.0 + depth)) << depth << " " << i;
      EXPECT_NEAR(measured.share[i], double(1.0L - visible[i]), 1e-13) << depth << " " << i;
    }
  }
}

TEST(Toeplitz, WhatIsInvisibleHasNoShare) {
  RowMatrix<double> s = random_scores(30, 2.0, 6);
  for (Index i = 0; i < 30; ++i) {
    for (Index j = 0; j + 4 <= i; ++j) s(i, j) = -kInf;
  }
  const Mask measured(s, true);
  for (std::size_t i = 3; i < 15; ++i) {
    EXPECT_EQ(measured.cut[i], 0.0);
    EXPECT_EQ(measured.share[i], 0.0);
  }
  EXPECT_TRUE(std::isnan(measured.a(0, 0)));
  EXPECT_EQ(measured.a(9, 5), 0.0);
  EXPECT_GT(measured.a(9, 6), 0.0);
  EXPECT_TRUE(std::isnan(Split(s).profile[4]));
}

TEST(Toeplitz, OffsetsHaveTheMomentsOfTheirDiagonals) {
  RowMatrix<double> s = RowMatrix<double>::Constant(3, 3, kNaN);
  s(0, 0) = 1e9 + 1.0;
  s(1, 1) = 1e9 + 2.0;
  s(2, 2) = 1e9 + 3.0;
  s(1, 0) = 5.0;
  s(2, 1) = -kInf;
  s(2, 0) = -kInf;
  Numbers mean(3), variance(3);
  std::int64_t count[3];
  ToeplitzWorkspace workspace;
  EXPECT_TRUE(offset_variance(view(s), mean.data(), variance.data(), count, workspace));
  EXPECT_DOUBLE_EQ(mean[0], 1e9 + 2.0);
  EXPECT_NEAR(variance[0], 2.0 / 3.0, 1e-6);
  EXPECT_EQ(variance[1], 0.0);
  EXPECT_TRUE(std::isnan(mean[2]));
  EXPECT_EQ(count[0] * 100 + count[1] * 10 + count[2], 310);
}

TEST(Toeplitz, ABadEntryMakesEverythingNaN) {
  for (const double bad : {kNaN, kInf}) {
    for (const auto& [i, j] : {std::pair<Index, Index>{1, 0}, {5, 0}, {7, 7}}) {
      RowMatrix<double> s = random_scores(8, 1.0, 7);
      s(i, j) = bad;
      const Split split(s);
      const Mask mask(s);
      EXPECT_FALSE(split.finite);
      EXPECT_FALSE(mask.finite);
      for (const Numbers* of : {&split.profile, &split.residual, &split.variance, &split.lse,
                                &mask.lse, &mask.attention}) {
        for (const double x : *of) EXPECT_TRUE(std::isnan(x));
      }
    }
  }
}

TEST(Toeplitz, OneTokenHasNoHalves) {
  const RowMatrix<double> s = RowMatrix<double>::Constant(1, 1, kNaN);
  EXPECT_TRUE(Split(s).finite);
  EXPECT_TRUE(Mask(s).finite);
}

}  // namespace
}  // namespace attnscope
