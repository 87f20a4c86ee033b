// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "simd/lanes.h"

// Square tiles of as many rows as a pack has lanes.
namespace attnscope {

// Where lane `lane` of a tile's row comes from when blocks of kBlock lanes change places with those
// of a row kBlock further down: itself and that row, one behind the other.
template <Index kBlock>
constexpr long exchanged_place(Index lane, bool further) {
  const bool moves = (lane / kBlock % 2 == 0) == further;
  if (!moves) return lane + (further ? kPackWidth : 0);
  return further ? lane + kBlock : lane - kBlock + kPackWidth;
}

template <Index kBlock, Index... kLane>
[[gnu::always_inline]] inline void exchange_blocks(Lanes* rows,
                                                   std::integer_sequence<Index, kLane...> lanes) {
  if constexpr (kBlock > 0) {
    constexpr LaneMask kNear = {exchanged_place<kBlock>(kLane, false)...};
    constexpr LaneMask kFar = {exchanged_place<kBlock>(kLane, true)...};
#pragma GCC unroll 8
    for (Index r = 0; r < kPackWidth; ++r) {
      if (r / kBlock % 2 != 0) continue;
      const Lanes near = rows[r], far = rows[r + kBlock];
      rows[r] = picked(near, far, kNear);
      rows[r + kBlock] = picked(near, far, kFar);
    }
    exchange_blocks<kBlock / 2>(rows, lanes);
  }
}
// Turns a square tile about its diagonal.
[[gnu::always_inline]] inline void transpose_lanes(Lanes* rows) {
  exchange_blocks<kPackWidth / 2>(rows, std::make_integer_sequence<Index, kPackWidth>{});
}

}  // namespace attnscope
