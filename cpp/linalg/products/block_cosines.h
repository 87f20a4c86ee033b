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
// those of the keys are read as they are. Where `square` alone is asked for, one tile after another
// is made in the same memory, when it is needed: it stays in the first-level cache.
template <class Float>
class BlockCosines {
 public:
  BlockCosines(const Float* units, const Float* queries, Index width, Index begin, Index end,
               bool square_alone, AlignedBuffer& buffer)
      : units_(units),
        queries_(queries),
        width_(width),
        begin_(begin),
        rows_(end - begin),
        ld_(in_tiles<Float>(rows_)),
        square_alone_(square_alone) {
    turned_ = buffer.resize(ld_ * kPanelKeys + (square_alone ? kWidth * kDepth : ld_ * width));
    tiles_ = reinterpret_cast<Float*>(turned_ + ld_ * kPanelKeys);
    for (Index c = 0; c < rows_ && !square_alone; c += kWidth) {
      for (Index k = 0; k < width; k += kDepth) pack(c, k);
    }
  }

  // How far apart the rows of a panel are.
  Index ld() const { return ld_; }

  // Row j − first holds those of key j with the queries, for the keys [first, last), at most
  // kPanelKeys. With `causal` those with queries before i + shift = j may be any number.
  const double* panel(Index first, Index last, bool causal, Index shift) {
    for (Index k = 0; k < width_; k += kDepth) {
      for (Index c = 0; c < rows_; c += kWidth) {
        const Index visible_end = begin_ + c + kWidth + shift;
        multiply(first, causal ? std::min(last, visible_end) : last, c, k, turned_ + c, ld_);
      }
    }
    return turned_;
  }

  // Those of the queries with each other, where they are the keys [begin, end): row i − begin of
  // `out` up to entry i − begin; what is behind may be any number.
  void square(double* out, Index ld) {
    for (Index k = 0; k < width_; k += kDepth) {
      for (Index c = 0; c < rows_; c += kWidth) {
        if (square_alone_) pack(c, k);
        for (Index i = c; i < rows_; i += kTileRows) {
          // Columns behind the last of these rows are not wanted.
          const Index columns = std::min(rows_, i + kTileRows) - c;
          multiply_rows(begin_ + i, begin_ + rows_, c, k, columns, out + i * ld + c, ld);
        }
      }
    }
  }

 private:
  static constexpr Index kWidth = Tile<Float>::kWidth;
  static constexpr Index kDepth = Tile<Float>::kDepth;

  Float* tile(Index c, Index k) {
    return square_alone_ ? tiles_ : tiles_ + c * width_ + k * kWidth;
  }

  // Terms [k, k + kDepth) of the queries of tile c.
  void pack(Index c, Index k) {
    Tile<Float>::pack_rows(queries_ + (begin_ + c) * width_ + k, std::min(kWidth, rows_ - c),
                           width_, std::min(kDepth, width_ - k), tile(c, k));
  }

  // Terms [k, k + kDepth) of the products of keys [first, last) with the queries of tile c.
  void multiply(Index first, Index last, Index c, Index k, double* out, Index ld) {
    for (Index j = first; j < last; j += kTileRows)
      multiply_rows(j, last, c, k, rows_ - c, out + (j - first) * ld, ld);
  }

  // The same of up to kTileRows keys from `first` on and the first `columns` queries of the tile.
  void multiply_rows(Index first, Index last, Index c, Index k, Index columns, double* out,
                     Index ld) {
    Tile<Float>::multiply(units_ + first * width_ + k, std::min(kTileRows, last - first), width_,
                          tile(c, k), columns, std::min(kDepth, width_ - k), k > 0, out, ld);
  }

  const Float* units_;
  const Float* queries_;
  Index width_;
  Index begin_;
  Index rows_;
  Index ld_;
  bool square_alone_;
  Float* tiles_;
  double* turned_;
};

// to[i·to_stride + j] = from[j·from_stride + i] for i < rows, j < columns.
inline void turn(const double* from, Index from_stride, Index rows, Index columns, double* to,
                 Index to_stride) {
  constexpr auto kSide = static_cast<Index>(kSquare);
  Index j = 0;
  for (; j + kSide <= columns; j += kSide) {
    Index i = 0;
    for (; i + kSide <= rows; i += kSide)
      transpose_square(from + j * from_stride + i, from_stride, to + i * to_stride + j, to_stride);
    for (; i < rows; ++i) {
      for (Index k = j; k < j + kSide; ++k) to[i * to_stride + k] = from[k * from_stride + i];
    }
  }
  for (; j < columns; ++j) {
    for (Index i = 0; i < rows; ++i) to[i * to_stride + j] = from[j * from_stride + i];
  }
}

// Copies what a square of `rows` holds below its diagonal to the other side.
inline void mirror(double* square, Index rows, Index ld) {
  constexpr auto kSide = static_cast<Index>(kSquare);
  for (Index i = 0; i < rows; i += kSide) {
    const Index end = std::min(rows, i + kSide);
    for (Index r = i; r < end; ++r) {
      for (Index j = r + 1; j < end; ++j) square[r * ld + j] = square[j * ld + r];
    }
    turn(square + end * ld + i, ld, end - i, rows - end, square + i * ld + end, ld);
  }
}

}  // namespace attnscope
