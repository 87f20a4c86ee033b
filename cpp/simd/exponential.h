// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simd/lanes.h"

// The exponential of a vector of entries. Only kernel sources include it.
namespace attnscope {

// e^x of numbers x <= 0 to 2 ulp; 0 below -708, and of -infinity and NaN. x = k·log 2 + r with |r| <= log(2)/2,
// whose exponential is its Taylor polynomial of degree 13; log 2 in two parts is that of fdlibm's e_exp.c (Sun
// Microsystems, 1993), so that k times the larger is exact.
inline Lanes bounded_exp(Lanes x) {
  constexpr double kSmallest = -708.0;
  constexpr double kRound = 6755399441055744.0;  // 1.5·2^52: what is added to it is rounded to a whole number
  const LaneMask counted = x >= kSmallest;
  const Lanes bounded = counted ? x : broadcast(kSmallest);
  const Lanes shifted = bounded * 1.44269504088896338700e+00 + kRound;
  const Lanes k = shifted - kRound;
  const Lanes r = (bounded - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  Lanes p = broadcast(1.0 / 6227020800.0);
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // The lowest bits of `shifted` are k, which becomes the exponent of a power of two.
  typedef std::uint64_t Unsigned __attribute__((vector_size(kPackWidth * sizeof(std::uint64_t))));
  const Unsigned power = (reinterpret_cast<Unsigned>(shifted) + std::uint64_t{1023}) << 52;
  return counted ? p * reinterpret_cast<Lanes>(power) : Lanes{};
}

}  // namespace attnscope
