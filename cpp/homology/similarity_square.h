// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>

#include "simd/number_lanes.h"

// Similarities of all pairs of vertices, tile by tile. Only kernel sources include it.
namespace attnscope {

constexpr std::size_t round_to_tiles(std::size_t n) { return (n + kTile - 1) / kTile * kTile; }

// Entries between two rows of a square of n vertices: whole cache lines, an odd number of them,
// because rows a power of two apart fall on the same cache sets.
constexpr std::size_t square_stride(std::size_t n) {
  constexpr std::size_t kLine = 16;
  return ((n + kLine - 1) / kLine | 1) * kLine;
}

// square[i·stride + j] = square[j·stride + i] = min(1, combine(a_ij, a_ji)) of n rows that are `ld`
// entries apart; `square` holds round_to_tiles(n)·stride entries, and beyond n whole tiles hold
// values without a meaning. `lower`: every entry above the diagonal is exactly 0, and is not read
// outside the tiles of the diagonal.
template <class Float, class Combine>
void fill_similarity_square(const Float* rows, std::size_t n, std::size_t ld, bool lower,
                            std::size_t stride, Combine combine, Float* square) {
  using Row = TileRow<Float>;
  alignas(64) Float below[kTile * kTile] = {};
  alignas(64) Float mirrored[kTile * kTile] = {};
  // The tile of rows from i and columns from j: in place, or copied where it is not whole.
  const auto tile_at = [&](std::size_t i, std::size_t j, Float* copy) {
    if (i + kTile <= n && j + kTile <= n) return std::pair(rows + i * ld + j, ld);
    std::fill(copy, copy + kTile * kTile, Float(0));
    for (std::size_t r = i; r < std::min(i + kTile, n); ++r) {
      const std::size_t end = std::min(j + kTile, n);
      std::copy(rows + r * ld + j, rows + r * ld + end, copy + (r - i) * kTile);
    }
    return std::pair(static_cast<const Float*>(copy), kTile);
  };
  for (std::size_t i = 0; i < n; i += kTile) {
    for (std::size_t j = 0; j <= i; j += kTile) {
      const auto [from, from_ld] = tile_at(i, j, below);
      Row across[kTile] = {};
      if (!lower || i == j) {
        const auto [above, above_ld] = tile_at(j, i, mirrored);
        for (std::size_t r = 0; r < kTile; ++r) across[r] = vector_at<Row>(above + r * above_ld);
        transpose_rows(across);
      }
      Row weights[kTile];
      Float* const to = square + i * stride + j;
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kTile; ++r) {
        const Row weight = combine(vector_at<Row>(from + r * from_ld), across[r]);
        weights[r] = weight < Row{} + Float(1) ? weight : Row{} + Float(1);
      }
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kTile; ++r) put(to + r * stride, weights[r]);
      if (j == i) continue;
      transpose_rows(weights);
      Float* const mirror = square + j * stride + i;
#pragma GCC unroll 8
      for (std::size_t r = 0; r < kTile; ++r) put(mirror + r * stride, weights[r]);
    }
  }
}

}  // namespace attnscope
