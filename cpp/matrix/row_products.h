// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "matrix/rows.h"

// Small dense products in float64 of which only a part is wanted. Only kernel sources include it.
// Every entry is one chain of sums in ascending order of what is summed over, so it does not depend
// on the tile, the block of rows or the number of columns that it is computed with.
namespace attnscope {

// A tile holds kTileWidth columns side by side, entry k of each after another. The products of
// kTileRows rows with it are 12 vectors, which with their operands fill sixteen registers.
inline constexpr Index kTileRows = 4;
inline constexpr Index kTileVectors = 3;
inline constexpr Index kTileWidth = kTileVectors * kPackWidth;

// What is summed over in one go, so that a tile and the rows beside it stay in the first-level
// cache.
inline constexpr Index kTileDepth = 192;

inline Index whole_tiles(Index columns) {
  assert(columns >= 0);
  return (columns + kTileWidth - 1) / kTileWidth * kTileWidth;
}

// out[r·ld + c] = (add ? out[r·ld + c] : 0) + Σ_{k<depth} rows[r·row_stride +
// k]·tile[k·kTileWidth + c] for `kRows` rows and the columns of one tile.
template <Index kRows>
void multiply_tile(const double* rows, Index row_stride, const double* tile, Index depth, bool add,
                   double* out, Index ld) {
  Lanes sums[kRows][kTileVectors] = {};
  if (add) {
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (Index v = 0; v < kTileVectors; ++v) sums[r][v] = load(out + r * ld + v * kPackWidth);
    }
  }
  for (Index k = 0; k < depth; ++k) {
    const double* entries = tile + k * kTileWidth;
    const Lanes a = load(entries);
    const Lanes b = load(entries + kPackWidth);
    const Lanes c = load(entries + 2 * kPackWidth);
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) {
      const Lanes factor = broadcast(rows[r * row_stride + k]);
      sums[r][0] += factor * a;
      sums[r][1] += factor * b;
      sums[r][2] += factor * c;
    }
  }
#pragma GCC unroll 4
  for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (Index v = 0; v < kTileVectors; ++v) store(out + r * ld + v * kPackWidth, sums[r][v]);
  }
}

// The same for 1 to kTileRows rows.
inline void multiply_tile(const double* rows, Index count, Index row_stride, const double* tile,
                          Index depth, bool add, double* out, Index ld) {
  assert(1 <= count && count <= kTileRows);
  switch (count) {
    case 1:
      return multiply_tile<1>(rows, row_stride, tile, depth, add, out, ld);
    case 2:
      return multiply_tile<2>(rows, row_stride, tile, depth, add, out, ld);
    case 3:
      return multiply_tile<3>(rows, row_stride, tile, depth, add, out, ld);
    default:
      return multiply_tile<4>(rows, row_stride, tile, depth, add, out, ld);
  }
}

// Tile of rows as columns: tile[k·kTileWidth + c] = rows[c·row_stride + k] for c < count, 0 beyond;
// count <= kTileWidth.
inline void pack_rows(const double* rows, Index count, Index row_stride, Index depth,
                      double* tile) {
  assert(0 <= count && count <= kTileWidth);
  constexpr auto kSide = static_cast<Index>(kSquare);
  Index c = 0;
  for (; c + kSide <= count; c += kSide) {
    const double* from = rows + c * row_stride;
    Index k = 0;
    for (; k + kSide <= depth; k += kSide)
      transpose_square(from + k, row_stride, tile + k * kTileWidth + c, kTileWidth);
    for (; k < depth; ++k) {
      for (Index r = 0; r < kSide; ++r) tile[k * kTileWidth + c + r] = from[r * row_stride + k];
    }
  }
  for (; c < count; ++c) {
    for (Index k = 0; k < depth; ++k) tile[k * kTileWidth + c] = rows[c * row_stride + k];
  }
  for (; c < kTileWidth; ++c) {
    for (Index k = 0; k < depth; ++k) tile[k * kTileWidth + c] = 0.0;
  }
}

// Tile of columns: tile[k·kTileWidth + c] = matrix[k·row_stride + c] for c < count, 0 beyond.
inline void pack_columns(const double* matrix, Index count, Index row_stride, Index depth,
                         double* tile) {
  assert(count >= 0);
  if (count >= kTileWidth) {
    for (Index k = 0; k < depth; ++k) {
      for (Index v = 0; v < kTileVectors; ++v) {
        store(tile + k * kTileWidth + v * kPackWidth,
              load(matrix + k * row_stride + v * kPackWidth));
      }
    }
    return;
  }
  for (Index k = 0; k < depth; ++k) {
    double* to = tile + k * kTileWidth;
    std::copy_n(matrix + k * row_stride, count, to);
    std::fill(to + count, to + kTileWidth, 0.0);
  }
}

}  // namespace attnscope
