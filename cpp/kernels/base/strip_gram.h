// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "kernels/base/aligned_buffer.h"
#include "kernels/base/row_products.h"
#include "kernels/base/strips.h"

// XXᵀ of one square matrix, in the strips that strip_tridiagonalize takes.
namespace attnscope {

static_assert(kPanelWidth == kStrip);

// XXᵀ of n rows [n] one behind the other, `causal`: of which row i is 0 behind entry i. Columns and rows from
// n on are 0, the diagonal blocks hold both triangles. Cost n³ operations, n³/3 when causal.
inline void strip_gram(const double* rows, Index n, bool causal, double* gram, AlignedBuffer& scratch) {
  double* panel = scratch.resize(kPanelDepth * kPanelWidth);
  for (Index s = 0; s < strips_of(n); ++s) {
    const Index first = s * kStrip;
    const Index end = std::min(n, first + kStrip);
    double* strip = gram + strip_offset(s);
    std::fill(strip + end * kStrip, strip + (first + kStrip) * kStrip, 0.0);
    // The first block sets every entry; to later ones only rows that reach them add.
    for (Index from = 0; from < (causal ? end : n); from += kPanelDepth) {
      const Index depth = std::min(kPanelDepth, (causal ? end : n) - from);
      pack_rows(rows + first * n + from, end - first, n, depth, panel);
      const Index top = causal ? from / kPanelRows * kPanelRows : 0;
      for (Index i = top; i < end; i += kPanelRows) {
        const Index size = std::min(kPanelRows, end - i);
        const Index terms = causal ? std::min(depth, i + size - from) : depth;
        multiply_panel(rows + i * n + from, size, n, panel, terms, from > 0, strip + i * kStrip, kStrip);
      }
    }
  }
}

}  // namespace attnscope
