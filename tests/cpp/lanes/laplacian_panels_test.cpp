// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <random>

#include "graphs/simple_laplacian.h"
#include "linalg/panels.h"

namespace attnscope {
namespace {

// The panels of L + 11ᵀ + lift·vvᵀ − σ entry by entry, with vectors or without.
template <class Number>
void fills(double tolerance) {
  std::mt19937 generator(5);
  for (const Index n : {1, 7, 24, 31, 32, 33, 64, 65, 100}) {
    LevelTable level;
    level.resize(n);
    std::vector<Index> nodes;
    std::vector<double> degree(static_cast<std::size_t>(n), 0.0);
    for (Index i = 0; i < n; ++i) {
      nodes.push_back(i);
      for (Index j = 0; j < i; ++j) {
        if (generator() % 3 != 0) continue;
        level.row(i)[j] = level.row(j)[i] = 1;
        degree[i] += 1.0;
        degree[j] += 1.0;
      }
    }
    SimpleLaplacian laplacian;
    laplacian.read({level, 0, nodes, degree});
    const Index padded = panels_of<Number>(n) * PanelShape<Number>::kWidth;
    AlignedBuffer matrix, vector;
    auto* panels =
        reinterpret_cast<Number*>(matrix.resize(panel_offset<Number>(panels_of<Number>(n))));
    auto* v = reinterpret_cast<Number*>(vector.resize(padded));
    for (Index i = 0; i < padded; ++i) {
      v[i] = i < n ? static_cast<Number>(i % 5) / Number{4} - Number{0.5} : Number{0};
    }
    for (const bool lifted : {false, true}) {
      laplacian.fill_panels<Number>(n, lifted ? v : nullptr, 3.0, 0.25, panels);
      for (Index column = 0; column < padded; ++column) {
        for (Index row = 0; row <= column; ++row) {
          const double expected =
              column >= n ? (row == column ? 1.0 : 0.0)
                          : (row == column                ? degree[row] + 0.75
                             : level.row(row)[column] > 0 ? 0.0
                                                          : 1.0) +
                                (lifted ? 3.0 * static_cast<double>(v[row]) * v[column] : 0.0);
          ASSERT_NEAR(panels[panel_entry<Number>(row, column)], expected, tolerance)
              << n << " " << row << " " << column;
        }
      }
    }
  }
}

TEST(LaplacianPanels, HoldTheShiftedMatrixInFloat64) { fills<double>(1e-13); }
TEST(LaplacianPanels, HoldTheShiftedMatrixInFloat32) { fills<float>(1e-4); }

}  // namespace
}  // namespace attnscope
