// SPDX-License-Identifier: MIT
#include "kernels/spectra/marchenko_pastur.h"

#include <gtest/gtest.h>

#include <memory>
#include <numbers>
#include <vector>

#include "matrices.h"
#include "random_matrices/row_spectrum.h"
#include "random_matrices/spectral_distance.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

MarchenkoPastur compare(const RowMatrix<double>& a, const MarchenkoPasturOptions& options = {}) {
  MarchenkoPasturWorkspace workspace;
  const MatrixView<double> matrix = view(a);
  const Support support = auto_support(matrix);
  MarchenkoPastur result;
  marchenko_pastur(std::span<const MatrixView<double>>(&matrix, 1),
                   std::span<const Support>(&support, 1), options,
                   std::span<MarchenkoPastur>(&result, 1), workspace);
  return result;
}

TEST(MarchenkoPastur, OneHotRowsHaveEqualEigenvalues) {
  const auto comparison = compare(RowMatrix<double>::Identity(16, 16).rowwise().reverse());
  EXPECT_NEAR(comparison.largest, 16.0 / 15.0, 1e-12);
  EXPECT_EQ(comparison.edge, 4.0);
  EXPECT_EQ(comparison.outliers, 0);
  EXPECT_EQ(comparison.outlier_energy, 0.0);
}

TEST(MarchenkoPastur, TooFewTokensOrNoRowThatVaries) {
  for (const auto& comparison :
       {compare(testing::random_attention(7, true, 1)), compare(testing::uniform_causal(20))}) {
    EXPECT_TRUE(std::isnan(comparison.ks));
    EXPECT_EQ(comparison.outliers, -1);
  }
}

TEST(MarchenkoPastur, RandomRowsAreNearTheirLawAndASinkIsNot) {
  const auto causal = compare(testing::random_attention(128, true, 3));
  EXPECT_EQ(causal.edge, std::numbers::e);
  EXPECT_LT(causal.ks, 0.06);
  EXPECT_TRUE(std::isnan(causal.p_value));
  RowMatrix<double> sink = testing::random_attention(128, true, 3);
  sink *= 0.3;
  sink.col(0).array() += 0.7;
  const auto comparison = compare(sink);
  EXPECT_GE(comparison.outliers, 1);
  EXPECT_GT(comparison.outlier_energy, 0.3);
}

TEST(MarchenkoPastur, APermutationNullOfAnyDrawsHasItsRank) {
  MarchenkoPasturOptions options;
  options.null = SpectralNull::permutation;
  options.draws = 9;
  const auto comparison = compare(testing::random_attention(20, true, 4), options);
  EXPECT_NEAR(std::remainder(comparison.p_value * 10.0, 1.0), 0.0, 1e-12);
  options.seed = 1;
  EXPECT_NE(compare(testing::random_attention(20, true, 4), options).edge, comparison.edge);
}

MarchenkoPastur under_mask(const RowMatrix<double>& a, const MarchenkoPasturOptions& options,
                           const bool* mask) {
  MarchenkoPasturWorkspace workspace;
  const MatrixView<double> matrix = view(a);
  const Support support = testing::masked(mask, a.rows());
  MarchenkoPastur result;
  marchenko_pastur(std::span<const MatrixView<double>>(&matrix, 1),
                   std::span<const Support>(&support, 1), options,
                   std::span<MarchenkoPastur>(&result, 1), workspace);
  return result;
}

MarchenkoPastur of_permutations(const RowMatrix<double>& a, Index draws, const bool* mask) {
  MarchenkoPasturOptions options;
  options.null = SpectralNull::permutation;
  options.draws = draws;
  return under_mask(a, options, mask);
}

TEST(MarchenkoPastur, AMaskThatIsARuleIsComparedWithTheLawOfTheRule) {
  constexpr Index n = 20;
  const auto mask = std::make_unique<bool[]>(n * n);
  for (const bool causal : {true, false}) {
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < n; ++j) mask[i * n + j] = !causal || j <= i;
    }
    const RowMatrix<double> a = testing::random_attention(n, causal, 4);
    const auto expected = compare(a), by_mask = under_mask(a, {}, mask.get());
    EXPECT_EQ(by_mask.edge, expected.edge);
    EXPECT_EQ(by_mask.ks, expected.ks);
    EXPECT_TRUE(std::isnan(by_mask.p_value));
    // One key more or less is no rule, and has a null of permutations.
    mask[5 * n + 2] = false;
    EXPECT_FALSE(std::isnan(under_mask(a, {}, mask.get()).p_value));
  }
}

TEST(MarchenkoPastur, RanksOfAMapBeyondAllDrawsAndOfOneThatIsTheirEqual) {
  constexpr Index n = 20;
  const auto all = std::make_unique<bool[]>(n * n);
  std::fill(all.get(), all.get() + n * n, true);
  const RowMatrix<double> random = testing::random_attention(n, false, 4, 2.0);
  RowMatrix<double> alike(n, n);
  for (Index i = 0; i < n; ++i) alike.row(i) = random.row(0);
  EXPECT_DOUBLE_EQ(of_permutations(alike, 9, all.get()).p_value, 0.1);
  // One row varies, and however it is shuffled it has one eigenvalue.
  RowMatrix<double> single = RowMatrix<double>::Constant(n, n, 1.0 / n);
  single.row(3) = random.row(3);
  const auto comparison = of_permutations(single, 9, all.get());
  EXPECT_EQ(comparison.p_value, 1.0);
  EXPECT_NEAR(comparison.largest, 1.0, 1e-14);
}

TEST(MarchenkoPastur, ShufflesReachEveryVisibleKey) {
  // 256 rows attend to the first of four keys. Spread evenly over them the rows have three
  // eigenvalues of 4/3; over three of the keys the largest is 5/3 or more.
  constexpr Index n = 256;
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  a.col(0).setOnes();
  const auto four = std::make_unique<bool[]>(n * n);
  for (Index i = 0; i < n; ++i) std::fill_n(four.get() + i * n, 4, true);
  EXPECT_LT(of_permutations(a, 3, four.get()).edge, 1.75);
}

TEST(SpectralDistance, OneValueAgainstTheTriangularLaw) {
  const NullLaw law = NullLaw::triangular();
  const NullLaw::Point at = law.quantile(0.7);
  const double x = at.x;
  EXPECT_NEAR(kolmogorov_smirnov(std::vector<double>{x}, law, 1e-12), 0.7, 1e-13);
  // ∫_0^x F + ∫_x^e (1 − F)
  const double above = (law.edge() - x) - (law.at(law.edge()).integral - at.integral);
  LawQuantiles quantiles;
  EXPECT_NEAR(wasserstein(std::vector<double>{x}, law, quantiles), at.integral + above, 1e-13);
}

TEST(SpectralDistance, TheTableLeavesTheLargestDifferenceExact) {
  const NullLaw law = NullLaw::triangular();
  const TriangularTable table;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform;
    std::vector<double> values(1 + seed % 40);
    const double power = seed % 3 == 0 ? 1.0 : seed % 3 == 1 ? 3.0 : 12.0;
    for (double& value : values) value = 2.9 * std::pow(uniform(generator), power);
    std::sort(values.begin(), values.end());
    EXPECT_EQ(kolmogorov_smirnov(values, law, 1e-12, &table),
              kolmogorov_smirnov(values, law, 1e-12));
  }
  for (double x = 1e-30; x < 3.0; x *= 1.01) {
    const auto [low, high] = table.cdf(x, x);
    EXPECT_LE(low, law.cdf(x) + 1e-14);
    EXPECT_GE(high, law.cdf(x) - 1e-14);
    EXPECT_LE(high - low, 0.0016);
  }
}

TEST(SpectralDistance, WassersteinBetweenSamples) {
  const std::vector<double> a = {0.0, 1.0};
  const std::vector<double> b = {0.5, 1.0, 3.0, 3.5};
  // mean of |sorted a − sorted b| with a's values doubled: (0.5 + 1 + 2 + 2.5)/4
  EXPECT_NEAR(wasserstein(a, std::span<const double>(b)), 1.5, 1e-15);
}

TEST(SpectralDistance, LeaveOneOutTreatsTiesAsOneAtom) {
  std::vector<std::pair<double, Index>> pool;
  for (Index sample = 0; sample < 3; ++sample) {
    for (int value = 0; value < 2; ++value) {
      pool.emplace_back(1.0 + 1e-14 * static_cast<double>(sample * 2 + value), sample);
    }
  }
  pool.emplace_back(2.0, 0);
  pool.emplace_back(2.0, 1);
  pool.emplace_back(3.0, 2);
  std::vector<Index> passed;
  std::vector<double> deviations;
  leave_one_out_deviations(pool, 3, 3, 1e-12, passed, deviations);
  // samples 0 and 1: {1, 1, 2}; sample 2: {1, 1, 3}. At 2: own 1, others (3 + 2)/6 for sample 0.
  EXPECT_NEAR(deviations[0], 1.0 - 5.0 / 6.0, 1e-15);
  EXPECT_NEAR(deviations[1], 1.0 - 5.0 / 6.0, 1e-15);
  EXPECT_NEAR(deviations[2], 1.0 / 3.0, 1e-15);
}

// X of the header, and how many rows vary.
Index standardized(const RowMatrix<double>& a, bool causal, RowMatrix<double>& x) {
  const Index n = a.rows();
  x = RowMatrix<double>::Zero(n, n);
  Index varying = 0;
  for (Index i = 0; i < n; ++i) {
    const Index count = causal ? i + 1 : n;
    const auto row = a.row(i).head(count).array();
    if ((row == row[0]).all()) continue;
    const double deviation = std::sqrt((row - row.mean()).square().mean());
    x.row(i).head(count) = (row - row.mean()) / deviation;
    ++varying;
  }
  return varying;
}

// Packs up to 256 tokens, single matrices in panels beyond.
TEST(RowSpectrum, EqualsADenseSolverOnBothSidesOfThePacks) {
  for (const Index n : {8, 33, 256, 257, 290}) {
    for (const bool causal : {true, false}) {
      std::vector<RowMatrix<double>> maps;
      for (unsigned seed : {1u, 2u, 3u}) maps.push_back(testing::random_attention(n, causal, seed));
      maps[1].row(5).setConstant(0.125);
      maps[1].row(n - 1).setConstant(0.25);
      maps[2].col(0).array() += 3.0;
      std::vector<MatrixView<double>> views;
      for (const auto& map : maps) views.push_back(view(map));
      RowSpectrumWorkspace workspace;
      for (std::size_t first = 0; first < maps.size();
           first += static_cast<std::size_t>(dqds_width())) {
        const std::size_t size =
            std::min(static_cast<std::size_t>(dqds_width()), maps.size() - first);
        row_tridiagonals(std::span<const MatrixView<double>>(views).subspan(first, size), causal,
                         workspace);
        row_spectra(n, static_cast<Index>(size), workspace);
        for (std::size_t k = 0; k < size; ++k) {
          RowMatrix<double> x;
          EXPECT_EQ(workspace.varying_rows[k], standardized(maps[first + k], causal, x)) << n;
          const Eigen::VectorXd expected = testing::eigenvalues(x * x.transpose() / double(n));
          const double top = expected[n - 1];
          for (Index i = 0; i < n; ++i) {
            EXPECT_NEAR(
                workspace.values[k * static_cast<std::size_t>(n) + static_cast<std::size_t>(i)],
                expected[i], 1e-12 * top)
                << n << ' ' << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
