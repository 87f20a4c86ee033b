// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "kernels/base/aligned_buffer.h"
#include "kernels/base/row_products.h"
#include "kernels/base/strips.h"

// XXᵀ of one square matrix, in strips.
namespace attnscope {

static_assert(kPanelWidth == kStrip);

// Entries of every row that are multiplied in one go, so that those of 512 rows stay in the second-level
// cache.
inline constexpr Index kGramDepth = 96;

// XXᵀ of n rows [n] that are `ld` apart; `causal`: row i is 0 behind entry i, and kStrip zeros are read there.
// Columns and rows from n on are 0, the diagonal blocks hold both triangles. Cost n³ operations, n³/3 when
// causal.
inline void strip_gram(const double* rows, Index ld, Index n, bool causal, double* gram,
                       AlignedBuffer& scratch) {
  double* panel = scratch.resize(kGramDepth * kPanelWidth);
  for (Index from = 0; from < n; from += kGramDepth) {
    for (Index s = causal ? from / kStrip : 0; s < strips_of(n); ++s) {
      const Index first = s * kStrip;
      const Index end = std::min(n, first + kStrip);
      double* strip = gram + strip_offset(s);
      if (from == 0) std::fill(strip + end * kStrip, strip + (first + kStrip) * kStrip, 0.0);
      const Index depth = std::min(kGramDepth, (causal ? end : n) - from);
      pack_rows(rows + first * ld + from, end - first, ld, depth, panel);
      // The first entries set every product; later ones add to those of rows that reach them.
      for (Index i = causal ? from / kPanelRows * kPanelRows : 0; i < end; i += kPanelRows) {
        const Index size = std::min(kPanelRows, end - i);
        const Index terms = causal ? std::min(depth, i + size - from) : depth;
        multiply_panel(rows + i * ld + from, size, ld, panel, terms, from > 0, strip + i * kStrip, kStrip);
      }
    }
  }
}

}  // namespace attnscope
