// SPDX-License-Identifier: MIT
#include "kernels/information/divergence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "matrices.h"
#include "matrix/row_statistics.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// Two heads that look at key 0 and key 1 only are log 2 from their mean; one head is its own mean.
TEST(Divergence, DisjointHeadsAreLogTwoApart) {
  constexpr Index n = 7;
  RowMatrix<double> first = RowMatrix<double>::Zero(n, n);
  RowMatrix<double> other = RowMatrix<double>::Zero(n, n);
  first.col(0).setOnes();
  other.col(1).setOnes();
  const std::vector<MatrixView<double>> heads = {view(first), view(other)};
  const std::vector<Support> supports(2);
  std::vector<double> out(2 * n);
  DivergenceWorkspace workspace;
  head_divergence(std::span<const MatrixView<double>>(heads), std::span<const Support>(supports), 0,
                  n, out.data(), n, workspace);
  for (double value : out) EXPECT_NEAR(value, std::log(2.0), 1e-15);
  head_divergence(std::span<const MatrixView<double>>(heads).first(1),
                  std::span<const Support>(supports).first(1), 0, n, out.data(), n, workspace);
  for (Index i = 0; i < n; ++i) EXPECT_EQ(out[i], 0.0);
}

TEST(Divergence, BlocksOfRowsFillTheirRowsOnly) {
  constexpr Index n = 20;
  const RowMatrix<float> a = testing::random_attention(n, true, 1).cast<float>();
  const RowMatrix<float> b = testing::random_attention(n, false, 2).cast<float>();
  const RowMatrix<float> b_turned = b.transpose();
  const std::vector<MatrixView<float>> heads = {view(a), matrix_view(b_turned.data(), n, 1, n)};
  std::vector<Support> supports(2);
  supports[0].kind = Support::Kind::causal;
  std::vector<double> of_all_rows(2 * n);
  std::vector<double> parts(2 * n, -1.0);
  DivergenceWorkspace workspace;
  const std::span<const MatrixView<float>> views(heads);
  head_divergence(views, std::span<const Support>(supports), 0, n, of_all_rows.data(), n,
                  workspace);
  head_divergence(views, std::span<const Support>(supports), 5, 17, parts.data(), n, workspace);
  for (Index h = 0; h < 2; ++h) {
    for (Index i = 0; i < n; ++i) {
      double expected = 0.0;
      for (Index j = 0; j < n; ++j) {
        const double x = h == 0 ? a(i, j) : b(i, j);
        const double mean = (static_cast<double>(a(i, j)) + static_cast<double>(b(i, j))) / 2.0;
        if (x > 0.0) expected += x * (std::log(x) - std::log(mean));
      }
      EXPECT_NEAR(of_all_rows[h * n + i], expected, 1e-14);
      EXPECT_EQ(parts[h * n + i], i >= 5 && i < 17 ? of_all_rows[h * n + i] : -1.0);
    }
  }
  // The head that sees most need not be the last.
  const std::vector<MatrixView<float>> turned = {heads[1], heads[0]};
  const std::vector<Support> turned_supports = {supports[1], supports[0]};
  std::vector<double> other(2 * n);
  head_divergence(std::span<const MatrixView<float>>(turned),
                  std::span<const Support>(turned_supports), 0, n, other.data(), n, workspace);
  for (Index i = 0; i < n; ++i) {
    EXPECT_NEAR(other[i], of_all_rows[n + i], 1e-14);
    EXPECT_NEAR(other[n + i], of_all_rows[i], 1e-14);
  }
}

// Sums of groups of queries in float32 against long double, for any number of heads beside the four
// that are read together; heads that are alike but for rounding fall back, and float64 never does.
TEST(Divergence, FastSumsHoldTheirBoundOrFallBack) {
  constexpr Index n = 67;
  constexpr Index kGroups = (n + kDivergenceRows - 1) / kDivergenceRows;
  for (const double sharpness : {1e-3, 0.2, 2.0}) {
    std::vector<RowMatrix<float>> maps;
    for (unsigned h = 0; h < 11; ++h)  // twice four, and three
      maps.push_back(testing::random_attention(n, true, h, sharpness).cast<float>());
    std::vector<MatrixView<float>> heads;
    for (const RowMatrix<float>& map : maps) heads.push_back(view(map));
    std::vector<Support> supports(heads.size());
    for (Support& support : supports) support.kind = Support::Kind::causal;
    DivergenceWorkspace workspace;
    std::vector<double> sums(heads.size() * kGroups);
    bool fell_back[kGroups] = {};
    fast_head_divergence(std::span<const MatrixView<float>>(heads),
                         std::span<const Support>(supports), 0, n, sums.data(), fell_back, kGroups,
                         workspace);
    for (Index g = 0; g < kGroups; ++g) {
      EXPECT_EQ(fell_back[g], sharpness < 1.0) << sharpness << " " << g;
      for (std::size_t h = 0; h < heads.size(); ++h) {
        long double expected = 0.0L;
        for (Index i = g * kDivergenceRows; i < std::min(n, (g + 1) * kDivergenceRows); ++i) {
          for (Index j = 0; j <= i; ++j) {
            const long double x = maps[h](i, j);
            long double mean = 0.0L;
            for (const RowMatrix<float>& map : maps) mean += map(i, j);
            if (x > 0.0L)
              expected += x * std::log(x * static_cast<long double>(maps.size()) / mean);
          }
        }
        EXPECT_NEAR(sums[h * kGroups + static_cast<std::size_t>(g)], double(expected),
                    1e-5 * double(expected))
            << sharpness << " " << g << " " << h;
      }
    }
  }
}

TEST(Divergence, FastSumsFallBackWhereQuotientsHaveNoLogarithmInFloat32) {
  // Quotients of the second head are below the normal numbers, but for those of a key that the
  // first does not see: what is lost in them counts beside what is left.
  constexpr Index n = 40, kKey = 5;
  RowMatrix<float> wide = testing::random_attention(n, false, 3).cast<float>();
  RowMatrix<float> faint = RowMatrix<float>::Constant(n, n, 0x1p-140f);
  wide.col(kKey).setZero();
  faint.col(kKey).setConstant(0x1p-120f);
  const std::vector<MatrixView<float>> heads = {view(wide), view(faint)};
  const std::vector<Support> supports(heads.size());
  constexpr Index kGroups = (n + kDivergenceRows - 1) / kDivergenceRows;
  DivergenceWorkspace workspace;
  std::vector<double> sums(heads.size() * kGroups);
  bool fell_back[kGroups] = {};
  fast_head_divergence(std::span<const MatrixView<float>>(heads),
                       std::span<const Support>(supports), 0, n, sums.data(), fell_back, kGroups,
                       workspace);
  double sum = 0.0, expected = 0.0;
  for (Index g = 0; g < kGroups; ++g) sum += sums[static_cast<std::size_t>(kGroups + g)];
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      const double x = faint(i, j);
      expected += x * std::log(x / (0.5 * (x + double(wide(i, j)))));
    }
  }
  EXPECT_NEAR(sum, expected, 1e-5 * expected);
}

TEST(Divergence, RemovalLeavesNothingAboveTheDiagonalOfACausalMap) {
  constexpr Index n = 21;
  const RowMatrix<double> full = testing::random_attention(n, false, 3);
  const RowMatrix<double> causal = testing::random_attention(n, true, 4);
  // Keys 1 and 6, by flags that stand three apart.
  bool removed[3 * n] = {};
  removed[3] = removed[18] = true;
  DivergenceWorkspace workspace;
  for (const RowMatrix<double>* a : {&full, &causal}) {
    const std::vector<MatrixView<double>> heads = {view(*a)};
    std::vector<Support> supports(1);
    if (a == &causal) supports[0].kind = Support::Kind::causal;
    double before[n];
    double after[n];
    bool excluded[n];
    RowMatrix<double> renormalized = RowMatrix<double>::Constant(n, n, -1.0);
    sink_removal(std::span<const MatrixView<double>>(heads), std::span<const Support>(supports),
                 removed, 3, 0, n, RemovalRows{before, after, excluded, renormalized.data(), n, n},
                 workspace);
    for (Index i = 0; i < n; ++i) {
      const double left = a->row(i).sum() - (*a)(i, 1) - (*a)(i, 6);
      for (Index j = 0; j < n; ++j) {
        EXPECT_NEAR(renormalized(i, j), j == 1 || j == 6 ? 0.0 : (*a)(i, j) / left, 1e-14)
            << i << " " << j;
      }
    }
  }
}

TEST(Divergence, OneHeadIsItsOwnMeanAndAKnownEntropyChangesNoBit) {
  // Of any length, so that rows end anywhere in a vector, with entries down to subnormal numbers.
  for (Index n : {1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 40}) {
    RowMatrix<float> a = testing::random_attention(n, true, unsigned(n)).cast<float>();
    if (n > 3) a(3, 1) = 1e-40f;
    const RowMatrix<float> b = testing::random_attention(n, true, unsigned(n) + 50).cast<float>();
    const std::vector<MatrixView<float>> heads = {view(a), view(b)};
    std::vector<Support> supports(2);
    supports[0].kind = supports[1].kind = Support::Kind::causal;
    DivergenceWorkspace workspace;
    std::vector<double> single(static_cast<std::size_t>(n), -1.0);
    head_divergence(std::span<const MatrixView<float>>(heads).first(1),
                    std::span<const Support>(supports).first(1), 0, n, single.data(), n, workspace);
    for (double value : single) EXPECT_EQ(value, 0.0) << n;

    std::vector<double> entropy(static_cast<std::size_t>(2 * n));
    RowScratch scratch;
    for (std::size_t h = 0; h < 2; ++h) {
      ASSERT_TRUE(
          row_statistics(heads[h], false, supports[h], entropy.data() + Index(h) * n, scratch));
    }
    std::vector<double> plain(static_cast<std::size_t>(2 * n));
    std::vector<double> of_known_supports(static_cast<std::size_t>(2 * n));
    const std::span<const MatrixView<float>> views(heads);
    head_divergence(views, std::span<const Support>(supports), 0, n, plain.data(), n, workspace);
    head_divergence(views, std::span<const Support>(supports), 0, n, of_known_supports.data(), n,
                    workspace, entropy.data());
    EXPECT_EQ(plain, of_known_supports) << n;
    for (Index i = 0; i < n; ++i) {
      long double expected = 0.0L;
      for (Index j = 0; j <= i; ++j) {
        const long double x = a(i, j);
        const long double mean = (x + static_cast<long double>(b(i, j))) / 2.0L;
        if (x > 0.0L) expected += x * std::log(x / mean);
      }
      EXPECT_NEAR(plain[static_cast<std::size_t>(i)], double(expected), 1e-15 * double(n)) << n;
    }
  }
}

TEST(Divergence, RemovalRescalesAndExcludes) {
  RowMatrix<double> a(2, 2);
  a << 1.0, 0.0, 0.75, 0.25;
  const std::vector<MatrixView<double>> heads = {view(a)};
  const std::vector<Support> supports(1);
  const bool removed[2] = {true, false};
  double before[2];
  double after[2];
  bool excluded[2];
  double attention[4];
  DivergenceWorkspace workspace;
  sink_removal(std::span<const MatrixView<double>>(heads), std::span<const Support>(supports),
               removed, 1, 0, 2, RemovalRows{before, after, excluded, attention, 2, 2}, workspace);
  EXPECT_TRUE(excluded[0]);
  EXPECT_FALSE(excluded[1]);
  EXPECT_EQ(attention[0], 0.0);
  EXPECT_EQ(attention[2], 0.0);
  EXPECT_EQ(attention[3], 1.0);
  EXPECT_EQ(after[1], 0.0);
}

TEST(Divergence, RemovalComparesWithTheMeanOfTheHeadsThatAreLeft) {
  // Without key 0 one head is gone, and the other two look at different keys.
  std::vector<RowMatrix<double>> maps(3, RowMatrix<double>::Zero(3, 3));
  for (Index h = 0; h < 3; ++h) maps[static_cast<std::size_t>(h)].col(h).setOnes();
  std::vector<MatrixView<double>> heads;
  for (const auto& map : maps) heads.push_back(view(map));
  const std::vector<Support> supports(3);
  const bool removed[3] = {true, false, false};
  double before[9];
  double after[9];
  bool excluded[9];
  DivergenceWorkspace workspace;
  sink_removal(std::span<const MatrixView<double>>(heads), std::span<const Support>(supports),
               removed, 1, 0, 3, RemovalRows{before, after, excluded, nullptr, 3, 3}, workspace);
  for (Index i = 0; i < 3; ++i) {
    EXPECT_TRUE(excluded[i]);
    EXPECT_NEAR(before[3 + i], std::log(3.0), 1e-15);
    EXPECT_NEAR(after[3 + i], std::log(2.0), 1e-15);
    EXPECT_NEAR(after[6 + i], std::log(2.0), 1e-15);
  }
}

}  // namespace
}  // namespace attnscope
