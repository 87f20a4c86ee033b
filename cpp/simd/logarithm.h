// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simd/number_lanes.h"

// The logarithm of a vector of entries. Only kernel sources include it.
namespace attnscope {

// log of numbers >= 2^-1022 to 2 ulp; some finite number of anything else, 0 and negative numbers,
// infinity and NaN too, so that x·log x is 0 at 0 and off by less than 1e-304 at a subnormal. The
// argument reduction and the coefficients are those of fdlibm's e_log.c (Sun Microsystems, 1993): x
// = 2^k·m, sqrt(1/2) <= m < sqrt(2), s = (m−1)/(m+1), log m = s·(2 + R(s²)).
inline Lanes bounded_log(Lanes x) {
  constexpr std::uint64_t kOne = 0x3ff0000000000000;
  constexpr std::uint64_t kRootHalf = 0x3fe6a09e667f3bcd;
  // Without a sign, because the bits of a NaN or of a negative number run over.
  typedef std::uint64_t Unsigned __attribute__((vector_size(kPackWidth * sizeof(std::uint64_t))));
  const Unsigned shifted = reinterpret_cast<Unsigned>(x) + (kOne - kRootHalf);
  // The exponent is made a double by planting it in the mantissa of 2^52: AVX2 converts no 64-bit
  // integer.
  const Unsigned exponent = (shifted >> 52) | std::uint64_t{0x4330000000000000};
  const Lanes k = reinterpret_cast<Lanes>(exponent) - (4503599627370496.0 + 1023.0);
  const Lanes m =
      reinterpret_cast<Lanes>((shifted & std::uint64_t{0x000fffffffffffff}) + kRootHalf);
  const Lanes f = m - 1.0;
  const Lanes s = f / (m + 1.0);
  const Lanes z = s * s;
  Lanes r = broadcast(1.479819860511658591e-01);
  r = r * z + 1.531383769920937332e-01;
  r = r * z + 1.818357216161805012e-01;
  r = r * z + 2.222219843214978396e-01;
  r = r * z + 2.857142874366239149e-01;
  r = r * z + 3.999999999940941908e-01;
  r = r * z + 6.666666666666735130e-01;
  r = r * z + 2.0;
  return multiply_add(s, r, k * 6.93147180559945286227e-01);
}

namespace portable {
inline FloatVector to_floats(IntVector x) { return __builtin_convertvector(x, FloatVector); }
}  // namespace portable

inline FloatVector to_floats(IntVector x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return reinterpret_cast<FloatVector>(_mm512_cvtepi32_ps(reinterpret_cast<__m512i>(x)));
#else
  return portable::to_floats(x);
#endif
}

// log of normal float32 numbers to a relative error of 3e-7; some finite number of anything else,
// 0 and negative and subnormal numbers, infinity and NaN too. x = 2^k·m, sqrt(1/2) <= m < sqrt(2),
// and log m = f·P(f) with f = m − 1, which is exact: P is the polynomial of degree 7 that is
// nearest to log(1 + f)/f, 1.7e-7 of it at most.
inline FloatVector bounded_log(FloatVector x) {
  constexpr std::int32_t kRootHalf = 0x3f3504f3;
  typedef std::uint32_t Unsigned __attribute__((vector_size(kVectorBytes)));
  // Without a sign, because the bits of a negative number run over.
  const Unsigned shifted = reinterpret_cast<Unsigned>(x) - static_cast<std::uint32_t>(kRootHalf);
  const FloatVector k = to_floats(reinterpret_cast<IntVector>(shifted) >> 23);
  const Unsigned m = (shifted & std::uint32_t{0x007fffff}) + static_cast<std::uint32_t>(kRootHalf);
  const FloatVector f = reinterpret_cast<FloatVector>(m) - 1.0f;
  FloatVector p = f * -0.10106848180294037f + 0.162225604057312f;
  p = p * f - 0.1725083589553833f;
  p = p * f + 0.19900168478488922f;
  p = p * f - 0.24969908595085144f;
  p = p * f + 0.33335059881210327f;
  p = p * f - 0.5000036358833313f;
  p = p * f + 0.9999999403953552f;
  return f * p + k * 0.693147182464599609375f;
}

}  // namespace attnscope
