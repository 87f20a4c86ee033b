// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "matrix/row_products.h"
#include "simd/number_lanes.h"

// Tiles of the two precisions of products of states: of float64 numbers, and of float32 numbers
// whose products are added up in float32 over one tile's depth and in float64 over tiles. Only
// kernel sources include it.
namespace attnscope {

template <class Float>
struct Tile;

// What both have in common: products of up to kTileRows rows with the first vectors of a tile.
template <class Float>
struct TileProducts {
  using Vector = typename VectorOf<Float>::Floats;
  static constexpr Index kNumbers = static_cast<Index>(kLanes<Float>);
  static constexpr Index kWidth = kTileVectors * kNumbers;

  // out[r·ld + c] (+)= Σ_{k<depth} rows[r·row_stride + k]·tile[k·kWidth + c] for `count` rows and
  // the first `columns` of a tile, in whole vectors.
  static void multiply(const Float* rows, Index count, Index row_stride, const Float* tile,
                       Index columns, Index depth, bool add, double* out, Index ld) {
    with_rows<kTileRows>(count, [&]<Index kRows>() {
      if (columns <= kNumbers)
        return multiply_rows<kRows, 1>(rows, row_stride, tile, depth, add, out, ld);
      if (columns <= 2 * kNumbers)
        return multiply_rows<kRows, 2>(rows, row_stride, tile, depth, add, out, ld);
      multiply_rows<kRows, kTileVectors>(rows, row_stride, tile, depth, add, out, ld);
    });
  }

 private:
  template <Index kCount, class Visit>
  static void with_rows(Index count, Visit&& visit) {
    if constexpr (kCount > 1) {
      if (count < kCount) return with_rows<kCount - 1>(count, visit);
    }
    visit.template operator()<kCount>();
  }

  template <Index kRows, Index kVectors>
  static void multiply_rows(const Float* rows, Index row_stride, const Float* tile, Index depth,
                            bool add, double* out, Index ld) {
    Vector sums[kRows][kVectors] = {};
    for (Index k = 0; k < depth; ++k) {
      Vector x[kVectors];
#pragma GCC unroll 3
      for (Index v = 0; v < kVectors; ++v)
        x[v] = vector_at<Vector>(tile + k * kWidth + v * kNumbers);
#pragma GCC unroll 4
      for (Index r = 0; r < kRows; ++r) {
        const Float factor = rows[r * row_stride + k];
#pragma GCC unroll 3
        for (Index v = 0; v < kVectors; ++v) sums[r][v] += x[v] * factor;
      }
    }
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (Index v = 0; v < kVectors; ++v) {
        alignas(64) Float part[kNumbers];
        put(part, sums[r][v]);
#pragma GCC unroll 2
        for (Index half = 0; half < kNumbers; half += kPackWidth) {
          double* to = out + r * ld + v * kNumbers + half;
          store(to, add ? load(to) + load(part + half) : load(part + half));
        }
      }
    }
  }
};

template <>
struct Tile<double> : TileProducts<double> {
  // A tile of so many terms stays in the first-level cache.
  static constexpr Index kDepth = 128;

  static void pack_rows(const double* rows, Index count, Index row_stride, Index depth,
                        double* tile) {
    attnscope::pack_rows(rows, count, row_stride, depth, tile);
  }
  static void pack_columns(const double* matrix, Index count, Index row_stride, Index depth,
                           double* tile) {
    attnscope::pack_columns(matrix, count, row_stride, depth, tile);
  }
};

template <>
struct Tile<float> : TileProducts<float> {
  // Terms that are added in float32: a sum of so many has an error of at most as many roundings.
  static constexpr Index kDepth = 64;

  static void pack_rows(const float* rows, Index count, Index row_stride, Index depth,
                        float* tile) {
    constexpr auto kSide = static_cast<Index>(kTile);
    Index c = 0;
    for (; c + kSide <= std::min(count, kWidth); c += kSide) {
      const float* from = rows + c * row_stride;
      Index k = 0;
      for (; k + kSide <= depth; k += kSide)
        transpose_tile(from + k, row_stride, tile + k * kWidth + c, kWidth);
      for (; k < depth; ++k) {
        for (Index r = 0; r < kSide; ++r) tile[k * kWidth + c + r] = from[r * row_stride + k];
      }
    }
    for (Index k = 0; k < depth; ++k) {
      for (Index r = c; r < kWidth; ++r)
        tile[k * kWidth + r] = r < count ? rows[r * row_stride + k] : 0.0f;
    }
  }

  static void pack_columns(const float* matrix, Index count, Index row_stride, Index depth,
                           float* tile) {
    for (Index k = 0; k < depth; ++k) {
      std::copy_n(matrix + k * row_stride, count, tile + k * kWidth);
      std::fill(tile + k * kWidth + count, tile + (k + 1) * kWidth, 0.0f);
    }
  }
};

// Columns in whole tiles.
template <class Float>
Index in_tiles(Index columns) {
  return (columns + Tile<Float>::kWidth - 1) / Tile<Float>::kWidth * Tile<Float>::kWidth;
}

// Columns in whole vectors, which are what products of them set.
template <class Float>
Index in_vectors(Index columns) {
  constexpr Index kNumbers = Tile<Float>::kNumbers;
  return (columns + kNumbers - 1) / kNumbers * kNumbers;
}

}  // namespace attnscope
