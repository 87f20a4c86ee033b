// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

// How many of some ascending thresholds a number reaches, at most 255 of them.
using Level = std::uint8_t;
inline constexpr Index kMostLevels = 255;

// A square table of levels. Rows are `stride` entries apart, a multiple of kLevelBlock, and there
// are as many of them; what lies behind row and column n is 0.
inline constexpr Index kLevelBlock = 64;
struct LevelTable {
  Index n = 0;
  Index stride = 0;
  std::vector<Level> entries;

  void resize(Index size);
  Level* row(Index i) { return entries.data() + i * stride; }
  const Level* row(Index i) const { return entries.data() + i * stride; }
};

// The level of every entry of A among `count` ascending thresholds, 0 on the diagonal; each entry
// is compared as the float64 number it stands for.
template <class Scalar>
void read_levels(const MatrixView<Scalar>& attention, const double* thresholds, Index count,
                 LevelTable& directed, RowScratch& scratch);

// level = max(directed, directedᵀ).
void symmetrize_levels(const LevelTable& directed, LevelTable& level);

// turned = directedᵀ.
void transpose_levels(const LevelTable& directed, LevelTable& turned);

// counts[t, j] = number of rows i with table[i, j] > t, for t below `count`.
void count_levels(const LevelTable& table, Index count, std::vector<std::int64_t>& counts);

// Scratch of count_level_components.
struct LevelSearch {
  std::vector<Level> best;
  std::vector<Level> open;
};

// components[t] = number of connected components of the graph {level > t}, for t below `count`.
void count_level_components(const LevelTable& level, Index count, LevelSearch& search,
                            std::vector<std::int64_t>& components);

// Bit k of the result: levels[k] > above, for 64 of them.
std::uint64_t bits_above(const Level* levels, Level above);

}  // namespace attnscope
