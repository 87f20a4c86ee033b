// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simd/lanes.h"

// The exponential of a vector of entries. Only kernel sources include it.
namespace attnscope {

// e^x of numbers x <= 0 to 2 ulp; 0 below -708, and of -infinity and NaN, in the place of each x. x
// = k·log(2)/S + r with |r| <= log(2)/2S, whose exponential is its Taylor polynomial; 2^(k/S) is a
// power of two times one of S numbers, S = 8 where one instruction picks them and 1 elsewhere. log
// 2 in two parts is that of fdlibm's e_exp.c (Sun Microsystems, 1993), so that k times the larger
// is exact. Every step is taken for all vectors before the next, because a step of one waits for
// its last.
template <Index kCount>
[[gnu::always_inline]] inline void bounded_exps(Lanes (&x)[kCount]) {
  constexpr double kSmallest = -708.0;
  constexpr double kRound =
      6755399441055744.0;  // 1.5·2^52: what is added to it is rounded to a whole number
  constexpr bool kPicks = kPackWidth == 8;
  constexpr double kSteps = kPicks ? 8.0 : 1.0;
  constexpr int kDegree = kPicks ? 8 : 13;
  constexpr double kInverseFactorials[] = {1.0,
                                           1.0,
                                           0.5,
                                           1.0 / 6.0,
                                           1.0 / 24.0,
                                           1.0 / 120.0,
                                           1.0 / 720.0,
                                           1.0 / 5040.0,
                                           1.0 / 40320.0,
                                           1.0 / 362880.0,
                                           1.0 / 3628800.0,
                                           1.0 / 39916800.0,
                                           1.0 / 479001600.0,
                                           1.0 / 6227020800.0};
  Lanes shifted[kCount], r[kCount], p[kCount];
#pragma GCC unroll 8
  for (Index v = 0; v < kCount; ++v) {
    const Lanes bounded = x[v] >= kSmallest ? x[v] : broadcast(kSmallest);
    shifted[v] = bounded * (kSteps * 1.44269504088896338700e+00) + kRound;
    const Lanes k = shifted[v] - kRound;
    r[v] = (bounded - k * (6.93147180369123816490e-01 / kSteps)) -
           k * (1.90821492927058770002e-10 / kSteps);
    p[v] = broadcast(kInverseFactorials[kDegree]);
  }
#pragma GCC unroll 13
  for (int power = kDegree - 1; power >= 0; --power) {
#pragma GCC unroll 8
    for (Index v = 0; v < kCount; ++v) p[v] = p[v] * r[v] + kInverseFactorials[power];
  }
  // The lowest bits of `shifted` are k: what is left of a division by S picks a number, the rest
  // becomes the exponent of a power of two.
  typedef std::uint64_t Unsigned __attribute__((vector_size(kPackWidth * sizeof(std::uint64_t))));
#pragma GCC unroll 8
  for (Index v = 0; v < kCount; ++v) {
    const Unsigned k = reinterpret_cast<Unsigned>(shifted[v]);
#if ATTNSCOPE_PACK_WIDTH == 8
    // 2^(k/8)
    constexpr Lanes kRoots = {1.0,
                              1.09050773266525765920701065576070798,
                              1.18920711500272106671749997056047592,
                              1.29683955465100966593375411779245118,
                              1.41421356237309504880168872420969808,
                              1.54221082540794082361229186209073484,
                              1.68179283050742908606225095246642979,
                              1.83400808640934246348708318958828892};
    const Lanes roots = picked(kRoots, kRoots, reinterpret_cast<LaneMask>(k & std::uint64_t{7}));
    const Unsigned scale = reinterpret_cast<Unsigned>(roots) + ((k >> 3) << 52);
#else
    const Unsigned scale = (k + std::uint64_t{1023}) << 52;
#endif
    x[v] = x[v] >= kSmallest ? p[v] * reinterpret_cast<Lanes>(scale) : Lanes{};
  }
}

// The same of one vector.
inline Lanes bounded_exp(Lanes x) {
  Lanes argument[1] = {x};
  bounded_exps(argument);
  return argument[0];
}

}  // namespace attnscope
