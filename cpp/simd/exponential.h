// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simd/lanes.h"

// The exponential of a vector of entries. Only kernel sources include it.
namespace attnscope {

// e^x of numbers x <= 0 to 2 ulp; 0 below -708, and of -infinity and NaN, in the place of each x. x = k·log 2 + r with
// |r| <= log(2)/2, whose exponential is its Taylor polynomial of degree 13; log 2 in two parts is that of fdlibm's
// e_exp.c (Sun Microsystems, 1993), so that k times the larger is exact. Every step is taken for all vectors before
// the next, because a step of one waits for its last.
template <Index kCount>
[[gnu::always_inline]] inline void bounded_exps(Lanes (&x)[kCount]) {
  constexpr double kSmallest = -708.0;
  constexpr double kRound = 6755399441055744.0;  // 1.5·2^52: what is added to it is rounded to a whole number
  constexpr double kInverseFactorials[] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
                                           1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,     1.0 / 120.0,
                                           1.0 / 24.0,        1.0 / 6.0,        0.5,             1.0,
                                           1.0};
  Lanes shifted[kCount], r[kCount], p[kCount];
#pragma GCC unroll 8
  for (Index v = 0; v < kCount; ++v) {
    const Lanes bounded = x[v] >= kSmallest ? x[v] : broadcast(kSmallest);
    shifted[v] = bounded * 1.44269504088896338700e+00 + kRound;
    const Lanes k = shifted[v] - kRound;
    r[v] = (bounded - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
    p[v] = broadcast(1.0 / 6227020800.0);
  }
#pragma GCC unroll 13
  for (const double term : kInverseFactorials) {
#pragma GCC unroll 8
    for (Index v = 0; v < kCount; ++v) p[v] = p[v] * r[v] + term;
  }
  // The lowest bits of `shifted` are k, which becomes the exponent of a power of two.
  typedef std::uint64_t Unsigned __attribute__((vector_size(kPackWidth * sizeof(std::uint64_t))));
#pragma GCC unroll 8
  for (Index v = 0; v < kCount; ++v) {
    const Unsigned power = (reinterpret_cast<Unsigned>(shifted[v]) + std::uint64_t{1023}) << 52;
    x[v] = x[v] >= kSmallest ? p[v] * reinterpret_cast<Lanes>(power) : Lanes{};
  }
}

// The same of one vector.
inline Lanes bounded_exp(Lanes x) {
  Lanes one[1] = {x};
  bounded_exps(one);
  return one[0];
}

}  // namespace attnscope
