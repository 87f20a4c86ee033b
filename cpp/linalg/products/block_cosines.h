// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "linalg/products/tiles.h"
#include "simd/memory.h"

// Inner products of a block of states with many. Only kernel sources include it.
namespace attnscope {

// Keys whose cosines are computed together, so that their states stay in the second-level cache.
inline constexpr Index kPanelKeys = 64;

// Cosines of a block of queries with keys: the queries' states stand side by side in tiles, and
// those of the keys are read as they are.
template <class Float>
class BlockCosines {
 public:
  BlockCosines(const Float* units, const Float* queries, Index width, Index begin, Index end,
               AlignedBuffer& buffer)
      : units_(units),
        width_(width),
        begin_(begin),
        rows_(end - begin),
        ld_(in_tiles<Float>(rows_)) {
    turned_ = buffer.resize(ld_ * (width + kPanelKeys));
    tiles_ = reinterpret_cast<Float*>(turned_ + ld_ * kPanelKeys);
    for (Index c = 0; c < rows_; c += kWidth) {
      for (Index k = 0; k < width; k += kDepth) {
        Tile<Float>::pack_rows(queries + (begin + c) * width + k, std::min(kWidth, rows_ - c),
                               width, std::min(kDepth, width - k), tile(c, k));
      }
    }
  }

  // How far apart the rows of a panel are.
  Index ld() const { return ld_; }

  // Row j − first holds those of key j with the queries, for the keys [first, last), at most
  // kPanelKeys. With `causal` those with queries before i + shift = j may be any number.
  const double* panel(Index first, Index last, bool causal, Index shift) {
    for (Index k = 0; k < width_; k += kDepth) {
      for (Index c = 0; c < rows_; c += kWidth) {
        const Index seen = begin_ + c + kWidth + shift;
        multiply(first, causal ? std::min(last, seen) : last, c, k, turned_ + c, ld_);
      }
    }
    return turned_;
  }

  // Those of the queries with each other, where they are the keys [begin, end): row i − begin of
  // `out` up to entry i − begin; what is behind may be any number.
  void square(double* out, Index ld) {
    for (Index k = 0; k < width_; k += kDepth) {
      for (Index c = 0; c < rows_; c += kWidth)
        multiply(begin_ + c, begin_ + rows_, c, k, out + c * ld + c, ld);
    }
  }

 private:
  static constexpr Index kWidth = Tile<Float>::kWidth;
  static constexpr Index kDepth = Tile<Float>::kDepth;

  Float* tile(Index c, Index k) { return tiles_ + c * width_ + k * kWidth; }

  // Terms [k, k + kDepth) of the products of keys [first, last) with the queries of tile c.
  void multiply(Index first, Index last, Index c, Index k, double* out, Index ld) {
    const Index depth = std::min(kDepth, width_ - k);
    for (Index j = first; j < last; j += kTileRows) {
      Tile<Float>::multiply(units_ + j * width_ + k, std::min(kTileRows, last - j), width_,
                            tile(c, k), rows_ - c, depth, k > 0, out + (j - first) * ld, ld);
    }
  }

  const Float* units_;
  Index width_;
  Index begin_;
  Index rows_;
  Index ld_;
  Float* tiles_;
  double* turned_;
};

// to[i·to_stride + j] = from[j·from_stride + i] for i < rows, j < columns.
inline void turn(const double* from, Index from_stride, Index rows, Index columns, double* to,
                 Index to_stride) {
  Index j = 0;
#if defined(__AVX__)
  for (; j + 4 <= columns; j += 4) {
    Index i = 0;
    for (; i + 4 <= rows; i += 4) {
      const double* at = from + j * from_stride + i;
      const __m256d r0 = _mm256_loadu_pd(at);
      const __m256d r1 = _mm256_loadu_pd(at + from_stride);
      const __m256d r2 = _mm256_loadu_pd(at + 2 * from_stride);
      const __m256d r3 = _mm256_loadu_pd(at + 3 * from_stride);
      const __m256d low01 = _mm256_unpacklo_pd(r0, r1);
      const __m256d high01 = _mm256_unpackhi_pd(r0, r1);
      const __m256d low23 = _mm256_unpacklo_pd(r2, r3);
      const __m256d high23 = _mm256_unpackhi_pd(r2, r3);
      double* out = to + i * to_stride + j;
      _mm256_storeu_pd(out, _mm256_permute2f128_pd(low01, low23, 0x20));
      _mm256_storeu_pd(out + to_stride, _mm256_permute2f128_pd(high01, high23, 0x20));
      _mm256_storeu_pd(out + 2 * to_stride, _mm256_permute2f128_pd(low01, low23, 0x31));
      _mm256_storeu_pd(out + 3 * to_stride, _mm256_permute2f128_pd(high01, high23, 0x31));
    }
    for (; i < rows; ++i) {
      for (Index k = j; k < j + 4; ++k) to[i * to_stride + k] = from[k * from_stride + i];
    }
  }
#endif
  for (; j < columns; ++j) {
    for (Index i = 0; i < rows; ++i) to[i * to_stride + j] = from[j * from_stride + i];
  }
}

}  // namespace attnscope
