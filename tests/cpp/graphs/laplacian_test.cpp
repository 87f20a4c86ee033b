// SPDX-License-Identifier: MIT
#include "kernels/graphs/laplacian.h"

#include <gtest/gtest.h>

#include <numbers>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

std::vector<double> spectrum(const RowMatrix<double>& a, const GraphOptions& options = {}) {
  LaplacianWorkspace workspace;
  std::vector<double> values(static_cast<std::size_t>(a.rows()));
  laplacian_eigenvalues(view(a), options, a.rows(), values.data(), workspace);
  return values;
}

TEST(Laplacian, StarCompletePathCycle) {
  constexpr Index n = 9;
  const auto star = spectrum(testing::star(n));
  const auto complete = spectrum(testing::complete(n));
  const auto path = spectrum(testing::path(n));
  EXPECT_EQ(star[0], 0.0);
  for (Index k = 1; k < n; ++k) {
    EXPECT_NEAR(star[k], k + 1 < n ? 1.0 : n, 1e-12);
    EXPECT_NEAR(complete[k], n, 1e-12);
    EXPECT_NEAR(path[k], 2.0 - 2.0 * std::cos(std::numbers::pi * double(k) / n), 1e-12);
  }
  std::vector<double> expected;
  for (Index k = 0; k < n; ++k) {
    expected.push_back(2.0 - 2.0 * std::cos(2.0 * std::numbers::pi * double(k) / n));
  }
  std::sort(expected.begin(), expected.end());
  const auto cycle = spectrum(testing::cycle(n));
  for (Index k = 0; k < n; ++k) EXPECT_NEAR(cycle[k], expected[k], 1e-12);
}

TEST(Laplacian, ZerosCountComponents) {
  RowMatrix<double> a = RowMatrix<double>::Zero(9, 9);
  a.topLeftCorner(4, 4) = testing::complete(4);
  a.block(4, 4, 3, 3) = testing::path(3);
  const auto values = spectrum(a);
  for (Index k = 0; k < 4; ++k) EXPECT_EQ(values[k], 0.0) << k;
  EXPECT_GT(values[4], 0.5);
}

TEST(Laplacian, NormalizedCompleteGraphAndIsolatedNode) {
  GraphOptions options;
  options.normalized = true;
  const auto values = spectrum(testing::complete(5), options);
  for (Index k = 1; k < 5; ++k) EXPECT_NEAR(values[k], 5.0 / 4.0, 1e-12);
  RowMatrix<double> a = RowMatrix<double>::Zero(4, 4);
  a.topLeftCorner(3, 3) = testing::complete(3);
  const auto isolated = spectrum(a, options);
  EXPECT_EQ(isolated[1], 0.0);
  EXPECT_NEAR(isolated[3], 1.5, 1e-12);
}

TEST(Laplacian, ThresholdGraphComparesTheLargerEntry) {
  RowMatrix<double> a = RowMatrix<double>::Zero(3, 3);
  a(1, 0) = 0.25;
  a(0, 2) = 0.1;
  GraphOptions options;
  options.threshold = 0.25;
  LaplacianWorkspace workspace;
  graph_weights(view(a), options, workspace);
  EXPECT_EQ(workspace.weights(0, 1), 1.0);
  EXPECT_EQ(workspace.weights(2, 0), 0.0);
  const auto values = spectrum(a, options);
  EXPECT_EQ(std::count(values.begin(), values.end(), 0.0), 2);
}

TEST(Laplacian, OneToken) { EXPECT_EQ(spectrum(RowMatrix<double>::Ones(1, 1))[0], 0.0); }

TEST(Laplacian, AnIsolatedNodeAddsAZeroToTheNormalizedSpectrum) {
  RowMatrix<double> a = RowMatrix<double>::Zero(5, 5);
  a.topLeftCorner(4, 4) = testing::path(4);
  GraphOptions options;
  options.normalized = true;
  LaplacianWorkspace workspace;
  double values[5];
  laplacian_eigenvalues(testing::view(a), options, 5, values, workspace);
  const double expected[] = {0.0, 0.0, 0.5, 1.5, 2.0};  // 1 − cos(πk/3) for the path
  for (int k = 0; k < 5; ++k) EXPECT_NEAR(values[k], expected[k], 1e-14) << k;
}

// One matrix at a time in panels, beyond the size up to which packs of them are reduced.
TEST(Laplacian, LargeSpectraEqualTheDenseSolver) {
  constexpr Index n = 261;
  RowMatrix<double> pieces = RowMatrix<double>::Zero(n, n);
  pieces.topLeftCorner(100, 100) = testing::random_attention(100, true, 1);
  pieces.block(100, 100, 150, 150) =
      testing::random_attention(150, false, 2);  // the rest is isolated
  RowMatrix<double> negative = testing::random_attention(n, true, 3);
  negative(7, 3) = -1e-3;
  const std::vector<RowMatrix<double>> maps = {testing::random_attention(n, true, 4), pieces,
                                               negative};
  for (const bool normalized : {false, true}) {
    for (const bool simple : {false, true}) {
      GraphOptions options;
      options.normalized = normalized;
      if (simple) options.threshold = 0.004;
      LaplacianWorkspace workspace;
      std::vector<MatrixView<double>> views;
      std::vector<std::vector<double>> spectra(maps.size(), std::vector<double>(n));
      std::vector<double*> out;
      for (std::size_t k = 0; k < maps.size(); ++k) {
        views.push_back(view(maps[k]));
        out.push_back(spectra[k].data());
      }
      for (std::size_t k = 0; k < maps.size();
           k += static_cast<std::size_t>(laplacian_pack_width(n))) {
        const std::size_t size =
            std::min(static_cast<std::size_t>(laplacian_pack_width(n)), maps.size() - k);
        laplacian_spectra(std::span<const MatrixView<double>>(views).subspan(k, size), options, n,
                          std::span<double* const>(out).subspan(k, size), workspace);
      }
      for (std::size_t k = 0; k < maps.size(); ++k) {
        const std::vector<double> expected = spectrum(maps[k], options);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_NEAR(spectra[k][i], expected[i], 1e-13 * std::max(1.0, expected.back()))
              << k << ' ' << i;
          EXPECT_EQ(spectra[k][i] == 0.0, expected[i] == 0.0) << k << ' ' << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
