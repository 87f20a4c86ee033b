// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "linalg/dqds.h"
#include "linalg/packed_tridiagonal.h"

// Packs of float32 matrices, twice as many side by side as of float64, and where what they are
// reduced to goes to be solved.
namespace attnscope {

// Half of a float32 pack.
typedef float HalfPack __attribute__((vector_size(kPackWidth * sizeof(float)), may_alias));

// Puts a float64 pack into the first or second half of a float32 one.
inline void narrow(const Lanes* from, Index size, Index half, FloatLanes* to) {
  auto* halves = reinterpret_cast<HalfPack*>(to);
  for (Index i = 0; i < size; ++i)
    halves[2 * i + half] = __builtin_convertvector(from[i], HalfPack);
}

inline FloatLanes* float_lane_buffer(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<FloatLanes*>(buffer.resize(size * kPackWidth));
}

// Numbers of one group of matrices that dqds solves together: two lines of n.
inline Index group_size(Index n) { return 2 * n * dqds_width(); }

// Copies `size` entries of two lines of a float32 pack, of matrices from `first` on, to the groups
// of dqds_width() matrices that begin at `groups`.
inline void widen_lines(const FloatLanes* diagonal, const FloatLanes* beside, Index n, Index first,
                        double* groups) {
  const Index width = dqds_width();
  for (Index lane = 0; lane < kFloatsInPack; ++lane) {
    const Index place = first + lane;
    double* group = groups + place / width * group_size(n) + place % width;
    for (Index i = 0; i < n; ++i) {
      group[i * width] = static_cast<double>(diagonal[i][lane]);
      group[(n + i) * width] = static_cast<double>(beside[i][lane]);
    }
  }
}

}  // namespace attnscope
