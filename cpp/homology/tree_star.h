// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "simd/number_lanes.h"

// Trees that are a star. Only kernel sources include it.
namespace attnscope {

// Whether each edge to vertex 0 is as near as any other edge of its other end, so that they are the
// tree: of equally near edges at a vertex that to vertex 0 comes first. From the entries below the
// diagonal; `firsts` is scratch for those of the first column. Looks at few rows where it is not.
template <class Float>
bool is_star(const Float* rows, std::size_t n, std::size_t ld, std::vector<Float>& firsts,
             Ahead& ahead) {
  using Floats = typename VectorOf<Float>::Floats;
  using Numbers = typename VectorOf<Float>::Numbers;
  using Lane = std::remove_reference_t<decltype(Numbers{}[0])>;
  constexpr std::size_t kWidth = kLanes<Float>;
  constexpr Float kInfinity = std::numeric_limits<Float>::infinity();
  constexpr std::size_t kRows = 8;  // between two looks at what was seen
  firsts.assign(n + kWidth, kInfinity);
  // Those of some rows ahead, because a vector that is read waits for a number just written to it.
  const auto take_firsts = [&](std::size_t begin) {
    for (std::size_t i = begin; i < std::min(begin + kRows, n); ++i) firsts[i] = rows[i * ld];
  };
  Numbers lane;
  for (std::size_t k = 0; k < kWidth; ++k) lane[k] = static_cast<Lane>(k);
  take_firsts(1);
  for (std::size_t begin = 1; begin < n; begin += kRows) {
    Numbers nearer{};
    ahead.ask(static_cast<Index>(kRows * n * sizeof(Float)) / Ahead::kLine);
    take_firsts(begin + kRows);
    for (std::size_t i = begin; i < std::min(begin + kRows, n); ++i) {
      const Float* const row = rows + i * ld;
      const Floats first = row[0] - Floats{};
      const auto compare = [&](std::size_t j, Floats read) {
        const Floats other = vector_at<Floats>(firsts.data() + j);
        const Numbers is_nearer = read > (other < first ? other : first);
        return is_nearer;
      };
      const std::size_t diagonal = i / kWidth * kWidth;
      for (std::size_t j = 0; j < diagonal; j += kWidth)
        nearer |= compare(j, vector_at<Floats>(row + j));
      Floats last{};
      if (diagonal + kWidth <= n) {
        last = vector_at<Floats>(row + diagonal);
      } else {  // whose end is not in the row
        std::memcpy(&last, row + diagonal, (n - diagonal) * sizeof(Float));
      }
      nearer |= compare(diagonal, last) & (lane < static_cast<Lane>(i - diagonal));
    }
    if (lane_bits(nearer) != 0) return false;
  }
  return true;
}

}  // namespace attnscope
