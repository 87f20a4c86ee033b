// SPDX-License-Identifier: MIT
#pragma once

#include "simd/lanes.h"

// The upper triangle of one matrix in panels of columns: a panel holds its columns' rows one after
// another, down to its diagonal block, so that loops over it read memory in order and it takes half
// the room of the matrix.
namespace attnscope {

inline constexpr Index kPanelVectors = 3;
inline constexpr Index kPanel = kPanelVectors * kPackWidth;
// Rows of accumulators beside the three vectors of a panel that the registers hold; divides kPanel.
inline constexpr Index kPanelRows = kPackWidth == 2 ? 3 : kPackWidth;
static_assert(kPanel % kPanelRows == 0);

inline Index panels_of(Index n) {
  assert(n >= 0);
  return (n + kPanel - 1) / kPanel;
}

// Numbers before panel s.
inline Index panel_offset(Index s) {
  assert(s >= 0);
  return kPanel * kPanel * (s * (s + 1) / 2);
}

// Where entry (row, column), row <= column, stands.
inline Index panel_entry(Index row, Index column) {
  assert(0 <= row && row <= column);
  const Index s = column / kPanel;
  return panel_offset(s) + row * kPanel + (column - s * kPanel);
}

inline Lanes* lanes_at(double* at) { return reinterpret_cast<Lanes*>(at); }
inline const Lanes* lanes_at(const double* at) { return reinterpret_cast<const Lanes*>(at); }

// c = rows − Σ_k left_k right_kᵀ of kPanelRows rows of one panel, which the registers hold: entry r
// of left_k is left[k·kStride + r], right_k is row k of `right`.
template <Index kStride>
[[gnu::always_inline]] inline void rest_of_products(const Lanes* rows, const double* left,
                                                    const double* right, Index terms,
                                                    Lanes (&c)[kPanelRows][kPanelVectors]) {
#pragma GCC unroll 8
  for (Index r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 3
    for (Index v = 0; v < kPanelVectors; ++v) c[r][v] = rows[r * kPanelVectors + v];
  }
  const Lanes* x = lanes_at(right);
  for (Index k = 0; k < terms; ++k) {
    const Lanes x0 = x[0], x1 = x[1], x2 = x[2];
#pragma GCC unroll 8
    for (Index r = 0; r < kPanelRows; ++r) {
      const Lanes f = broadcast(left[r]);
      c[r][0] -= f * x0;
      c[r][1] -= f * x1;
      c[r][2] -= f * x2;
    }
    left += kStride;
    x += kPanelVectors;
  }
}

// What each of kPackWidth vectors comes to, in one: its entries joined two by two.
template <class Join>
[[gnu::always_inline]] inline Lanes joined_rows(const Lanes* p, Join join) {
#if ATTNSCOPE_PACK_WIDTH == 8
  constexpr LaneMask kEven = {0, 8, 2, 10, 4, 12, 6, 14}, kOdd = {1, 9, 3, 11, 5, 13, 7, 15};
  constexpr LaneMask kLow = {0, 1, 8, 9, 4, 5, 12, 13}, kHigh = {2, 3, 10, 11, 6, 7, 14, 15};
  constexpr LaneMask kFirst = {0, 1, 2, 3, 8, 9, 10, 11}, kLast = {4, 5, 6, 7, 12, 13, 14, 15};
  Lanes pairs[4], fours[2];
  for (Index k = 0; k < 4; ++k) {
    pairs[k] = join(picked(p[2 * k], p[2 * k + 1], kEven), picked(p[2 * k], p[2 * k + 1], kOdd));
  }
  for (Index k = 0; k < 2; ++k) {
    fours[k] = join(picked(pairs[2 * k], pairs[2 * k + 1], kLow),
                    picked(pairs[2 * k], pairs[2 * k + 1], kHigh));
  }
  return join(picked(fours[0], fours[1], kFirst), picked(fours[0], fours[1], kLast));
#elif ATTNSCOPE_PACK_WIDTH == 4
  constexpr LaneMask kEven = {0, 4, 2, 6}, kOdd = {1, 5, 3, 7};
  constexpr LaneMask kFirst = {0, 1, 4, 5}, kLast = {2, 3, 6, 7};
  const Lanes low = join(picked(p[0], p[1], kEven), picked(p[0], p[1], kOdd));
  const Lanes high = join(picked(p[2], p[3], kEven), picked(p[2], p[3], kOdd));
  return join(picked(low, high, kFirst), picked(low, high, kLast));
#else
  return join(Lanes{p[0][0], p[1][0]}, Lanes{p[0][1], p[1][1]});
#endif
}
inline Lanes row_sums(const Lanes* p) {
  return joined_rows(p, [](Lanes a, Lanes b) { return a + b; });
}
inline Lanes row_tops(const Lanes* p) { return joined_rows(p, larger); }

}  // namespace attnscope
