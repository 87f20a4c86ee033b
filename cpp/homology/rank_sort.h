// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "simd/number_lanes.h"

// A sort of few numbers. Only kernel sources include it.
namespace attnscope {

// Sorts few numbers by counting those whose upper halves are below, which has no branches to guess;
// those of one upper half come in any order and are sorted after that.
inline void rank_sort(std::uint64_t* keys, std::size_t count, std::vector<std::uint64_t>& scratch,
                      std::vector<std::uint32_t>& uppers) {
  constexpr std::size_t kWidth = kLanes<float>;
  constexpr std::size_t kAtOnce = 4;  // vectors, which stay in registers
  constexpr auto kSign = std::uint32_t{1} << 31;
  constexpr std::size_t kBlock = kAtOnce * kWidth;
  const std::size_t padded = (count + kBlock - 1) / kBlock * kBlock;
  scratch.assign(keys, keys + count);
  uppers.assign(2 * padded + count, 0);
  std::uint32_t* const ranks = uppers.data() + padded;
  std::uint32_t* const equals = ranks + padded;  // placed so far, by rank of the first
  for (std::size_t k = 0; k < count; ++k)
    uppers[k] = static_cast<std::uint32_t>(keys[k] >> 32) ^ kSign;
  for (std::size_t first = 0; first < padded; first += kBlock) {
    IntVector upper[kAtOnce];
    IntVector below[kAtOnce] = {};
    for (std::size_t k = 0; k < kAtOnce; ++k)
      upper[k] = vector_at<IntVector>(uppers.data() + first + k * kWidth);
    for (std::size_t j = 0; j < count; ++j) {
      const IntVector other = static_cast<std::int32_t>(uppers[j]) - IntVector{};
#pragma GCC unroll 4
      for (std::size_t k = 0; k < kAtOnce; ++k) below[k] -= other < upper[k];  // −1 where it is
    }
    for (std::size_t k = 0; k < kAtOnce; ++k) put(ranks + first + k * kWidth, below[k]);
  }
  for (std::size_t k = 0; k < count; ++k) keys[ranks[k] + equals[ranks[k]]++] = scratch[k];
  for (std::size_t k = 1; k < count; ++k) {
    const std::uint64_t key = keys[k];
    std::size_t at = k;
    for (; at > 0 && key < keys[at - 1]; --at) keys[at] = keys[at - 1];
    keys[at] = key;
  }
}

}  // namespace attnscope
