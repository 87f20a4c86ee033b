// SPDX-License-Identifier: MIT
#pragma once

#include <bit>

#include "simd/lanes.h"

namespace attnscope {

// Minors p and q of a tridiagonal matrix minus x, one row apart, and how many eigenvalues the rows so far
// have below x: as often as consecutive minors differ in sign. Without a division a step waits for two
// products alone.
struct SturmMinors {
  Lanes p, q;
  LaneMask changes;

  explicit SturmMinors(Lanes pivot) : p(pivot), q(broadcast(1.0)), changes{} {
    settle();
  }
  void step(Lanes pivot, Lanes square) {
    const Lanes next = pivot * p - square * q;
    q = p;
    p = next;
    settle();
  }
  // Both by a power of two, so that neither overflows nor vanishes. In a matrix of norm 1 eight steps
  // shrink the larger by no more than a rounding each.
  void rescale() {
    constexpr long kExponent = 0x7ffL << 52, kTwice = 2046L << 52;
    const Lanes size = larger(magnitude(p), magnitude(q));
    const Lanes scale = std::bit_cast<Lanes>(kTwice - (std::bit_cast<LaneMask>(size) & kExponent));
    p *= scale;
    q *= scale;
  }

 private:
  // A minor of exactly 0 stands for a pivot just above 0.
  void settle() {
    p = p == 0.0 ? 1e-20 * q : p;
    changes += (std::bit_cast<LaneMask>(p) ^ std::bit_cast<LaneMask>(q)) < 0;
  }
};

// The two smallest eigenvalues of each tridiagonal matrix (`beside`: its off-diagonal entries), all being
// in [0, high] but those behind, by bisection to the last bits of `high`. Entries are at most 2 n in size
// and are left in units of n. Two searches run side by side, since each step waits for the last.
inline void two_smallest_eigenvalues(Lanes* diagonal, Lanes* beside, Index n, Lanes high, Lanes& first,
                                     Lanes& second) {
  assert(n >= 1);
  constexpr Index kStride = 8;
  const double norm = static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(n)));
  const double unit = 1.0 / norm;
  for (Index i = 0; i < n; ++i) diagonal[i] *= unit;
  for (Index i = 0; i + 1 < n; ++i) beside[i] *= beside[i] * (unit * unit);
  high *= unit;
  Lanes low1{}, low2{};
  Lanes high1 = high, high2 = high;
  for (int round = 0; round < 52; ++round) {
    const Lanes x1 = 0.5 * (low1 + high1);
    const Lanes x2 = 0.5 * (low2 + high2);
    SturmMinors minors1(diagonal[0] - x1), minors2(diagonal[0] - x2);
    for (Index begin = 1; begin < n; begin += kStride) {
      const Index end = begin + kStride < n ? begin + kStride : n;
      for (Index i = begin; i < end; ++i) {
        minors1.step(diagonal[i] - x1, beside[i - 1]);
        minors2.step(diagonal[i] - x2, beside[i - 1]);
      }
      minors1.rescale();
      minors2.rescale();
    }
    const LaneMask above1 = minors1.changes <= -1;
    const LaneMask above2 = minors2.changes <= -2;
    high1 = above1 ? x1 : high1;
    low1 = above1 ? low1 : x1;
    high2 = above2 ? x2 : high2;
    low2 = above2 ? low2 : x2;
  }
  first = 0.5 * (low1 + high1) * norm;
  second = larger(first, 0.5 * (low2 + high2) * norm);
}

}  // namespace attnscope
