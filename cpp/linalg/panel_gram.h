// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "linalg/panels.h"
#include "matrix/row_products.h"
#include "simd/aligned_buffer.h"

// XXᵀ of one square matrix, in panels.
namespace attnscope {

static_assert(kTileWidth == kPanel);

// Entries of every row that are multiplied in one go, so that those of 512 rows stay in the second-level
// cache.
inline constexpr Index kGramDepth = 96;

// XXᵀ of n rows [n] that are `ld` apart; `causal`: row i is 0 behind entry i, and kPanel zeros are read there.
// Columns and rows from n on are 0, the diagonal blocks hold both triangles. Cost n³ operations, n³/3 when
// causal.
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
        multiply_tile(rows + i * ld + from, size, ld, tile, terms, from > 0, panel + i * kPanel, kPanel);
      }
    }
  }
}

}  // namespace attnscope
