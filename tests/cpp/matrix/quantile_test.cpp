// SPDX-License-Identifier: MIT
#include "matrix/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// Linear between the two nearest of all visible entries, sorted.
double by_sorting(const RowMatrix<double>& a, const Support& support, double q) {
  std::vector<double> entries;
  for (Index i = 0; i < a.rows(); ++i) {
    for (Index j = 0; j < a.rows(); ++j) {
      if (support.visible(i, j)) entries.push_back(a(i, j));
    }
  }
  if (entries.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(entries.begin(), entries.end());
  const double position = q * static_cast<double>(entries.size() - 1);
  const auto rank = static_cast<std::size_t>(position);
  const double at = entries[rank];
  if (static_cast<double>(rank) == position) return at;
  return at + (entries[rank + 1] - at) * (position - static_cast<double>(rank));
}

TEST(Quantile, EqualsSortingWhateverIsVisibleAndHoweverManyAreEqual) {
  // 4,096 entries are looked at one by one; above, a sample brackets the rank, and where most are
  // equal or a mask is given digits are counted.
  for (Index n : {1, 2, 9, 64, 65, 91, 150, 400}) {
    const RowMatrix<double> random = testing::random_attention(n, false, unsigned(n));
    const RowMatrix<double> rounded = (random * (8.0 * double(n))).array().round().matrix();
    const RowMatrix<double> constant = RowMatrix<double>::Constant(n, n, 0.25);
    RowMatrix<double> signs = random;
    for (Index k = 0; k < n * n; k += 3) signs.data()[k] = -signs.data()[k];
    RowMatrix<double> outlier = constant;
    outlier(n - 1, 0) = 7.0;
    std::vector<char> flags(static_cast<std::size_t>(n * n));
    for (Index k = 0; k < n * n; ++k) flags[static_cast<std::size_t>(k)] = k % 3 != 1;
    QuantileWorkspace workspace;
    for (const RowMatrix<double>* a :
         std::vector<const RowMatrix<double>*>{&random, &rounded, &constant, &signs, &outlier}) {
      for (auto kind : {Support::Kind::full, Support::Kind::causal, Support::Kind::mask}) {
        Support support;
        support.kind = kind;
        support.mask = reinterpret_cast<const bool*>(flags.data());
        support.mask_row_stride = n;
        support.mask_column_stride = 1;
        for (double q : {0.0, 0.001, 0.1, 0.5, 0.8, 0.99, 0.99999, 1.0}) {
          const double expected = by_sorting(*a, support, q);
          // Between two entries it may differ by rounding.
          EXPECT_NEAR(visible_quantile(view(*a), support, q, workspace), expected,
                      1e-15 * std::abs(expected))
              << n << " tokens, kind " << int(kind) << ", q = " << q;
        }
      }
    }
  }
}

TEST(Quantile, TheNextEntryMayLieAboveAllThatTheSampleHas) {
  // Of 128 x 128 entries the sample takes every 64th from the 33rd on: all of them are equal, and
  // the next larger entry stands nowhere among them. The largest is read last.
  const Index n = 128;
  RowMatrix<double> a = RowMatrix<double>::Constant(n, n, 0.25);
  const Index larger = 4000;
  for (Index k = 0, put = 0; put < larger; ++k) {
    if (k % 64 == 32) continue;
    a.data()[k] = 0.75;
    ++put;
  }
  a(n - 1, n - 1) = 0.9;
  const Index last = n * n - larger - 2;  // the rank of the last entry of 0.25
  const double q = (static_cast<double>(last) + 0.5) / static_cast<double>(n * n - 1);
  Support support;
  support.kind = Support::Kind::full;
  QuantileWorkspace workspace;
  EXPECT_EQ(by_sorting(a, support, q), 0.5);
  EXPECT_EQ(visible_quantile(view(a), support, q, workspace), 0.5);
}

TEST(Quantile, OfNothingIsNaN) {
  const RowMatrix<double> a = testing::random_attention(3, false, 1);
  const bool hidden[9] = {};
  const Support support = testing::masked(hidden, 3);
  QuantileWorkspace workspace;
  EXPECT_TRUE(std::isnan(visible_quantile(view(a), support, 0.5, workspace)));
}

}  // namespace
}  // namespace attnscope
