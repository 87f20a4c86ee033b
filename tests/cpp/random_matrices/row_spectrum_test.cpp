// SPDX-License-Identifier: MIT
#include "random_matrices/row_spectrum.h"

#include <gtest/gtest.h>

#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// X of the header, and how many rows vary.
Index standardized(const RowMatrix<double>& a, bool causal, RowMatrix<double>& x) {
  const Index n = a.rows();
  x = RowMatrix<double>::Zero(n, n);
  Index kept = 0;
  for (Index i = 0; i < n; ++i) {
    const Index count = causal ? i + 1 : n;
    const auto row = a.row(i).head(count).array();
    if ((row == row[0]).all()) continue;
    const double deviation = std::sqrt((row - row.mean()).square().mean());
    x.row(i).head(count) = (row - row.mean()) / deviation;
    ++kept;
  }
  return kept;
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
      for (std::size_t first = 0; first < maps.size(); first += static_cast<std::size_t>(dqds_width())) {
        const std::size_t size = std::min(static_cast<std::size_t>(dqds_width()), maps.size() - first);
        row_spectra(std::span<const MatrixView<double>>(views).subspan(first, size), causal, workspace);
        for (std::size_t k = 0; k < size; ++k) {
          RowMatrix<double> x;
          EXPECT_EQ(workspace.kept[k], standardized(maps[first + k], causal, x)) << n;
          const Eigen::VectorXd expected = testing::eigenvalues(x * x.transpose() / double(n));
          const double top = expected[n - 1];
          for (Index i = 0; i < n; ++i) {
            EXPECT_NEAR(workspace.values[k * static_cast<std::size_t>(n) + static_cast<std::size_t>(i)],
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
