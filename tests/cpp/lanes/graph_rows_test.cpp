// SPDX-License-Identifier: MIT
// The weights of a matrix's graph, read row by row.
#include "graphs/graph_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace attnscope {
namespace {

double weight_of(double a, double b, const GraphOptions& options) {
  if (options.threshold) return std::max(a, b) >= *options.threshold ? 1.0 : 0.0;
  return symmetrized(a, b, options.symmetrize);
}

void expect_weights(const MatrixView<float>& matrix, const GraphOptions& options) {
  const Index n = matrix.rows();
  GraphRows workspace;
  // What a row's place holds before must not be seen.
  std::vector<double> room(static_cast<std::size_t>(padded_row(n)));
  std::vector<double> degrees(static_cast<std::size_t>(n), 0.0);
  double least = 0.0;
  const bool graph = read_weights(
      matrix, options, workspace,
      [&](Index) {
        std::fill(room.begin(), room.end(), std::numeric_limits<double>::quiet_NaN());
        return room.data();
      },
      [&](Index i, const double* row) {
        for (Index j = 0; j < i; ++j) {
          const double expected = weight_of(matrix(i, j), matrix(j, i), options);
          ASSERT_EQ(row[j], expected) << "n = " << n << ", " << i << " " << j;
          degrees[i] += expected;
          degrees[j] += expected;
          least = std::min(least, expected);
        }
        for (Index j = i; j < padded_row(i); ++j) ASSERT_EQ(row[j], 0.0) << i << " " << j;
      });
  EXPECT_EQ(graph, least >= 0.0);
  for (Index i = 0; i < n; ++i) EXPECT_NEAR(workspace.degree[i], degrees[i], 1e-13 * n);
  for (Index i = n; i < padded_row(n); ++i) EXPECT_EQ(workspace.degree[i], 0.0);
}

TEST(GraphRows, EqualWeightsEntryByEntry) {
  std::mt19937 generator(3);
  std::uniform_real_distribution<float> uniform(-0.2f, 1.0f);
  for (const Index n : {1, 2, 7, 8, 9, 16, 17, 31, 40}) {
    for (const bool causal : {false, true}) {
      for (const Index stride : {n, n + 3}) {
        std::vector<float> entries(static_cast<std::size_t>(n * stride));
        for (float& entry : entries) entry = uniform(generator);
        if (causal) {
          for (Index i = 0; i < n; ++i)
            std::fill_n(entries.begin() + i * stride + i + 1, n - i - 1, 0.0f);
        }
        const float* data = entries.data();
        for (const bool turned : {false, true}) {
          const auto matrix = turned ? matrix_view(data, n, n, Index{1}, stride)
                                     : matrix_view(data, n, n, stride, Index{1});
          for (const Symmetrize how : {Symmetrize::mean, Symmetrize::max, Symmetrize::min})
            expect_weights(matrix, {how, std::nullopt, false});
          for (const double threshold : {-1.0, 0.0, 0.4})
            expect_weights(matrix, {Symmetrize::mean, threshold, false});
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
