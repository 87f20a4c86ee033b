// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "linalg/packed_tridiagonal.h"
#include "linalg/panels.h"
#include "matrix/row_products.h"
#include "simd/memory.h"

// XXᵀ of one square matrix, in panels, and of a pack of them, into the lower triangles that
// tridiagonalize takes.
namespace attnscope {

static_assert(kTileWidth == kPanel);

// Entries of every row that are multiplied in one go, so that those of 512 rows stay in the
// second-level cache.
inline constexpr Index kGramDepth = 96;

// XXᵀ of n rows [n] that are `ld` apart; `causal`: row i is 0 behind entry i, and kPanel zeros are
// read there. Columns and rows from n on are 0, the diagonal blocks hold both triangles. Cost n³
// operations, n³/3 when causal.
inline void panel_gram(const double* rows, Index ld, Index n, bool causal, double* gram,
                       AlignedBuffer& scratch) {
  double* tile = scratch.resize(kGramDepth * kTileWidth);
  for (Index from = 0; from < n; from += kGramDepth) {
    for (Index s = causal ? from / kPanel : 0; s < panels_of(n); ++s) {
      const Index first = s * kPanel;
      const Index end = std::min(n, first + kPanel);
      double* panel = gram + panel_offset(s);
      if (from == 0) std::fill(panel + end * kPanel, panel + (first + kPanel) * kPanel, 0.0);
      const Index depth = std::min(kGramDepth, (causal ? end : n) - from);
      pack_rows(rows + first * ld + from, end - first, ld, depth, tile);
      // The first entries set every product; later ones add to those of rows that reach them.
      for (Index i = causal ? from / kTileRows * kTileRows : 0; i < end; i += kTileRows) {
        const Index size = std::min(kTileRows, end - i);
        const Index terms = causal ? std::min(depth, i + size - from) : depth;
        multiply_tile(rows + i * ld + from, size, ld, tile, terms, from > 0, panel + i * kPanel,
                      kPanel);
      }
    }
  }
}

// A tile's sums fill the registers: the more they are, the less of the rows is read again, which no
// longer fits the first-level cache where eight matrices stand side by side.
inline constexpr Index kGramColumns = 4;
inline constexpr Index kGramRows = kPackWidth == 8 ? 6 : 3;

// Where row i of a pack begins of whose rows only the first i + 1 entries count, each row being
// padded by zeros to a multiple of kGramColumns; row n is the end.
inline Index padded_triangle_row(Index i) {
  const Index full_groups = i / kGramColumns;
  return kGramColumns * (kGramColumns * (full_groups * (full_groups + 1) / 2) +
                         (i - full_groups * kGramColumns) * (full_groups + 1));
}

// Entries [row, row + kRows) x [column, column + 4) of XXᵀ from the first `count` entries of the
// rows; those below and on the diagonal go to `gram`.
template <Index kRows, class Row, class Vector>
void gram_tile(const Row& row_at, Index row, Index column, Index count, Index n, Vector* gram) {
  const Vector* left[kRows];
  const Vector* right[kGramColumns];
  for (Index r = 0; r < kRows; ++r) left[r] = row_at(row + r);
  // Columns past the matrix repeat the last one and are dropped.
  for (Index c = 0; c < kGramColumns; ++c) right[c] = row_at(std::min(column + c, n - 1));
  Vector sums[kRows][kGramColumns] = {};
  for (Index t = 0; t < count; ++t) {
    Vector factor[kRows];
#pragma GCC unroll 6
    for (Index r = 0; r < kRows; ++r) factor[r] = left[r][t];
#pragma GCC unroll 4
    for (Index c = 0; c < kGramColumns; ++c) {
      const Vector x = right[c][t];
#pragma GCC unroll 6
      for (Index r = 0; r < kRows; ++r) sums[r][c] += factor[r] * x;
    }
  }
  for (Index r = 0; r < kRows; ++r) {
    for (Index c = 0; c < kGramColumns && column + c <= row + r; ++c) {
      gram[triangle_row(row + r) + column + c] = sums[r][c];
    }
  }
}

// XXᵀ of the rows at row_at(i), of which the first count(i) entries are not 0, a number that does
// not fall. Cost n³ operations a lane, n³/3 for lower triangles.
template <class Row, class Count, class Vector>
void packed_gram(Index n, const Row& row_at, const Count& count, Vector* gram) {
  for (Index column = 0; column < n; column += kGramColumns) {
    const Index terms = count(std::min(column + kGramColumns, n) - 1);
    Index row = column;
    for (; row + kGramRows <= n; row += kGramRows) {
      gram_tile<kGramRows>(row_at, row, column, terms, n, gram);
    }
    for (; row + 2 <= n; row += 2) gram_tile<2>(row_at, row, column, terms, n, gram);
    for (; row < n; ++row) gram_tile<1>(row_at, row, column, terms, n, gram);
  }
}

}  // namespace attnscope
