// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <limits>

#include "simd/number_lanes.h"

// The nearest other vertex of every vertex. Only kernel sources include it.
namespace attnscope {

// Vectors of a row that are read side by side: what is kept of them stays in registers.
inline constexpr std::size_t kNearestAtOnce = 4;

// Of each column of a symmetric square of n vertices the largest similarity, and its row, the first
// on ties, whose edge is the first by (row, column) too. The diagonal holds −∞, and so does
// `similarity` where nothing joins a vertex. Calls `after` with each row of each side by side;
// reads and writes up to kNearestAtOnce vectors beyond n.
template <class Float, class Number, class After>
void find_nearest(const Float* square, std::size_t n, std::size_t stride, Float* similarity,
                  Number* vertex, After after) {
  using Floats = typename VectorOf<Float>::Floats;
  using Numbers = typename VectorOf<Float>::Numbers;
  constexpr std::size_t kWidth = kLanes<Float>;
  for (std::size_t first = 0; first < n; first += kNearestAtOnce * kWidth) {
    Floats best[kNearestAtOnce];
    Numbers at[kNearestAtOnce];
    for (Floats& similarities : best)
      similarities = -std::numeric_limits<Float>::infinity() - Floats{};
    for (Numbers& vertices : at) vertices = Numbers{};
    for (std::size_t i = 0; i < n; ++i) {
      const Float* const row = square + i * stride + first;
      const Numbers self = static_cast<Number>(i) - Numbers{};
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kNearestAtOnce; ++k) {
        const Floats read = vector_at<Floats>(row + k * kWidth);
        at[k] = read > best[k] ? self : at[k];
        best[k] = read > best[k] ? read : best[k];
      }
      after();
    }
    for (std::size_t k = 0; k < kNearestAtOnce; ++k) {
      put(similarity + first + k * kWidth, best[k]);
      put(vertex + first + k * kWidth, at[k]);
    }
  }
}

}  // namespace attnscope
