// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "simd/transpose.h"

// The upper triangle of one matrix in panels of columns: a panel holds its columns' rows one after
// another, down to its diagonal block, so that loops over it read memory in order and it takes half
// the room of the matrix.
namespace attnscope {

inline constexpr Index kPanelVectors = 3;
inline constexpr Index kPanel = kPanelVectors * kPackWidth;
// Rows of accumulators beside the three vectors of a panel that the registers hold; divides kPanel.
inline constexpr Index kPanelRows = kPackWidth == 2 ? 3 : kPackWidth;
static_assert(kPanel % kPanelRows == 0);

// Panels of either float type; a vector holds twice as many float32 numbers, of which two make a
// panel that pads less where the registers are widest.
template <class Number>
struct PanelShape;
template <>
struct PanelShape<double> {
  using Vector = Lanes;
  using Places = LaneMask;
  static constexpr Index kLanes = kPackWidth;
  static constexpr Index kVectors = kPanelVectors;
  static constexpr Index kWidth = kPanel;
};
template <>
struct PanelShape<float> {
  using Vector = FloatLanes;
  using Places = FloatPlaces;
  static constexpr Index kLanes = kFloatsInPack;
  static constexpr Index kVectors = kPackWidth == 8 ? 2 : 3;
  static constexpr Index kWidth = kVectors * kLanes;
};
static_assert(PanelShape<float>::kWidth % kPanelRows == 0);

template <class Number = double>
Index panels_of(Index n) {
  assert(n >= 0);
  return (n + PanelShape<Number>::kWidth - 1) / PanelShape<Number>::kWidth;
}

// Numbers before panel s.
template <class Number = double>
Index panel_offset(Index s) {
  assert(s >= 0);
  return PanelShape<Number>::kWidth * PanelShape<Number>::kWidth * (s * (s + 1) / 2);
}

// Where entry (row, column), row <= column, stands.
template <class Number = double>
Index panel_entry(Index row, Index column) {
  assert(0 <= row && row <= column);
  const Index width = PanelShape<Number>::kWidth;
  const Index s = column / width;
  return panel_offset<Number>(s) + row * width + (column - s * width);
}

inline Lanes* lanes_at(double* at) { return reinterpret_cast<Lanes*>(at); }
inline const Lanes* lanes_at(const double* at) { return reinterpret_cast<const Lanes*>(at); }
inline FloatLanes* lanes_at(float* at) { return reinterpret_cast<FloatLanes*>(at); }
inline const FloatLanes* lanes_at(const float* at) {
  return reinterpret_cast<const FloatLanes*>(at);
}

// c = rows − Σ_k left_k right_kᵀ of kPanelRows rows of one panel, which the registers hold: entry r
// of left_k is left[k·kStride + r], right_k is row k of `right`. Rows are kRow vectors long, of
// which kVectors count.
template <Index kStride, Index kRow, class Number, class Vector, Index kVectors>
[[gnu::always_inline]] inline void rest_of_products(const Vector* rows, const Number* left,
                                                    const Number* right, Index terms,
                                                    Vector (&c)[kPanelRows][kVectors]) {
#pragma GCC unroll 8
  for (Index r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 3
    for (Index v = 0; v < kVectors; ++v) c[r][v] = rows[r * kRow + v];
  }
  const Vector* x = lanes_at(right);
  for (Index k = 0; k < terms; ++k) {
    Vector of_row[kVectors];
#pragma GCC unroll 3
    for (Index v = 0; v < kVectors; ++v) of_row[v] = x[v];
#pragma GCC unroll 8
    for (Index r = 0; r < kPanelRows; ++r) {
      const Vector f = broadcast(left[r]);
#pragma GCC unroll 3
      for (Index v = 0; v < kVectors; ++v) c[r][v] -= f * of_row[v];
    }
    left += kStride;
    x += kRow;
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

// Place `lane` of what joins two vectors of runs of kBlock lanes: runs of the first and of the
// second in turn, the even ones or the `odd` ones.
template <Index kBlock>
constexpr int joined_place(Index lane, bool odd) {
  const Index run = lane / kBlock;
  return static_cast<int>((run % 2 == 0 ? 0 : kFloatsInPack) + run / 2 * 2 * kBlock +
                          lane % kBlock + (odd ? kBlock : 0));
}

// What each of `kLanes` vectors sums to, in one.
template <Index kBlock, Index... kLane>
[[gnu::always_inline]] inline FloatLanes joined_sums(const FloatLanes* p,
                                                     std::integer_sequence<Index, kLane...> lanes) {
  if constexpr (kBlock == kFloatsInPack) {
    return p[0];
  } else {
    constexpr FloatPlaces kEven = {joined_place<kBlock>(kLane, false)...};
    constexpr FloatPlaces kOdd = {joined_place<kBlock>(kLane, true)...};
    constexpr Index kCount = kFloatsInPack / kBlock / 2;
    FloatLanes sums[kCount];
#pragma GCC unroll 8
    for (Index k = 0; k < kCount; ++k) {
      sums[k] = picked(p[2 * k], p[2 * k + 1], kEven) + picked(p[2 * k], p[2 * k + 1], kOdd);
    }
    return joined_sums<2 * kBlock>(sums, lanes);
  }
}
inline FloatLanes row_sums(const FloatLanes* p) {
  return joined_sums<1>(p, std::make_integer_sequence<Index, kFloatsInPack>{});
}

}  // namespace attnscope
