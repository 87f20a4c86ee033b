// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/float_rows.h"

// Sums along several rows side by side in float32, whose long chains of operations overlap: rows of
// a small map are too short to hide them alone. Only this folder includes it.
namespace attnscope {

// −Σ x log x of kRows rows, `stride` entries apart, over their first `end` <= n entries, with the
// same bits as float_row_entropy gives each; false, and nothing written, where an entry has a sign.
// n >= kFloatWidth.
template <Index kRows, class Entry>
bool float_row_entropies(const Entry* rows, Index stride, Index end, Index n, double* out) {
  FloatVector chains[kRows][2] = {};
  IntVector signs{};
  Lanes totals[kRows] = {};
  const auto add = [&](Index r, FloatVector x, int chain) {
    signs |= reinterpret_cast<IntVector>(x);
    chains[r][chain] += x * bounded_log(x);
  };
  const auto flush = [&] {
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) {
      totals[r] = plus_floats(totals[r], chains[r][0] + chains[r][1]);
      chains[r][0] = chains[r][1] = FloatVector{};
    }
  };
  Index j = 0;
  while (j + 2 * kFloatWidth <= end) {
    const Index stop = std::min(end, j + 2 * kChain * kFloatWidth);
    for (; j + 2 * kFloatWidth <= stop; j += 2 * kFloatWidth) {
#pragma GCC unroll 4
      for (Index r = 0; r < kRows; ++r) add(r, load_floats(rows + r * stride + j), 0);
#pragma GCC unroll 4
      for (Index r = 0; r < kRows; ++r) add(r, load_floats(rows + r * stride + j + kFloatWidth), 1);
    }
    if (j + 2 * kFloatWidth <= end) flush();
  }
  for (int chain = 0; j < end; chain = 1, j += kFloatWidth) {
    // a vector that begins before j, so that no entry behind the row is read
    const Index first = std::min(j, n - kFloatWidth);
    const bool is_inside = first == j && j + kFloatWidth <= end;
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) {
      const FloatVector x = load_floats(rows + r * stride + first);
      add(r, is_inside ? x : lanes_between(x, j - first, end - first), chain);
    }
  }
  flush();
  if (lane_bits(signs) != 0) return false;
#pragma GCC unroll 4
  for (Index r = 0; r < kRows; ++r) out[r] = 0.0 - sum_by_halves(totals[r]);
  return true;
}

}  // namespace attnscope
