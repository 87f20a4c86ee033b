// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>

#include "linalg/bidiagonal.h"
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

// Numbers of the groups of kFloatsInPack matrices.
inline Index float_groups_size(Index n) {
  return (kFloatsInPack + dqds_width() - 1) / dqds_width() * group_size(n);
}

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

// Makes a float32 pack, with rows as bidiagonalize_float_pack takes them, bidiagonal in the groups
// from `groups` on, of float_groups_size(n) numbers. Destroys it.
inline void bidiagonalize_float_pack(FloatLanes* pack, Index n, double* groups,
                                     AlignedBuffer& lines, AlignedBuffer& scratch) {
  FloatLanes* diagonal = float_lane_buffer(lines, 2 * n);
  std::fill(diagonal, diagonal + 2 * n, FloatLanes{});
  bidiagonalize_float_pack(reinterpret_cast<float*>(pack), n, reinterpret_cast<float*>(diagonal),
                           reinterpret_cast<float*>(diagonal + n), scratch);
  widen_lines(diagonal, diagonal + n, n, 0, groups);
}

// Singular values, descending, of the bidiagonal matrices in groups, which float32 arithmetic made.
inline void float_bidiagonal_singular_values(const double* groups, Index n,
                                             std::span<double* const> out,
                                             DqdsWorkspace& workspace) {
  const auto width = static_cast<std::size_t>(dqds_width());
  for (std::size_t first = 0; first < out.size(); first += width, groups += group_size(n)) {
    bidiagonal_singular_values(groups, groups + n * dqds_width(), n,
                               out.subspan(first, std::min(width, out.size() - first)), workspace,
                               0, Precision::fast);
  }
}

}  // namespace attnscope
