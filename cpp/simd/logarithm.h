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

// (1/2 + u)(1/2 − u), rounded once: it is small next to both of its zeros.
inline FloatVector bow_of_line(FloatVector u) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  const auto lanes = reinterpret_cast<__m512>(u);
  return reinterpret_cast<FloatVector>(_mm512_fnmadd_ps(lanes, lanes, _mm512_set1_ps(0.25f)));
#elif defined(ATTNSCOPE_AVX_PACKS) && defined(__FMA__)
  const auto lanes = reinterpret_cast<__m256>(u);
  return reinterpret_cast<FloatVector>(_mm256_fnmadd_ps(lanes, lanes, _mm256_set1_ps(0.25f)));
#else
  return (0.5f + u) * (0.5f - u);
#endif
}

#if defined(ATTNSCOPE_AVX512_PACKS)
// Q of `scaled_log2` by sixteenths of [1, 2): a parabola c0 + c1·u + c2·u² in each, that which
// makes the largest relative error of log2 x least. An instruction looks up sixteen numbers of a
// table.
alignas(kVectorBytes) inline constexpr float kBowParabolas[3][16] = {
    {2941062.0f, 2901655.5f, 2877668.0f, 2863725.25f, 2856185.25f, 2852567.0f, 2851177.0f,
     2850871.0f, 2850865.75f, 2850642.0f, 2849865.75f, 2848329.0f, 2845912.25f, 2842557.75f,
     2838249.75f, 2833002.0f},
    {-755257.1875f, -934897.125f, -1062414.0f, -1151295.25f, -1211309.125f, -1249620.75f,
     -1271600.25f, -1281110.25f, -1281149.375f, -1274101.125f, -1261712.375f, -1245329.75f,
     -1225996.5f, -1204523.125f, -1181541.125f, -1157543.5f},
    {1579582.625f, 1374768.0f, 1205201.5f, 1063436.5f, 943868.0f, 842216.125f, 754891.125f,
     679418.5625f, 614449.5625f, 557779.0625f, 508096.09375f, 464333.53125f, 425616.65625f,
     391223.65625f, 360554.8125f, 333109.0f}};
#endif

// kLogOfDoubling·log2 x of normal float32 numbers to a relative error of 9e-7; some finite number
// of anything else, 0 and negative and subnormal numbers, infinity and NaN too. x = 2^k·m with 1 <=
// m < 2: as a whole number the bits of x are kLogOfDoubling (k + m − 1), but for those of 1, and
// log2 m − (m − 1) = (m − 1)(2 − m)·Q(m − 1.5). Q is a polynomial of degree 6, the one that makes
// the largest relative error of log2 x least, or with AVX-512 a parabola for each sixteenth. One
// conversion, and half of the operations that find k by itself.
inline constexpr float kLogOfDoubling = 8388608.0f;  // 2^23
inline FloatVector scaled_log2(FloatVector x) {
  constexpr std::int32_t kOne = 0x3f800000;
  // Without a sign, because the bits of a negative number run over.
  typedef std::uint32_t Unsigned __attribute__((vector_size(kVectorBytes)));
  const Unsigned bits = reinterpret_cast<Unsigned>(x);
  const FloatVector line =
      to_floats(reinterpret_cast<IntVector>(bits - static_cast<std::uint32_t>(kOne)));
  const Unsigned m = (bits & std::uint32_t{0x007fffff}) | static_cast<std::uint32_t>(kOne);
  const FloatVector u = reinterpret_cast<FloatVector>(m) - 1.5f;
  const FloatVector bow = bow_of_line(u);
#if defined(ATTNSCOPE_AVX512_PACKS)
  const auto sixteenth = reinterpret_cast<__m512i>(bits >> 19);  // the last four bits are read
  const auto coefficient = [&](int power) {
    return reinterpret_cast<FloatVector>(
        _mm512_permutexvar_ps(sixteenth, _mm512_load_ps(kBowParabolas[power])));
  };
  const FloatVector q = (coefficient(2) * u + coefficient(1)) * u + coefficient(0);
#else
  FloatVector q = u * 75757.4453125f + -130587.8203125f;
  q = q * u + 192078.265625f;
  q = q * u + -343722.5f;
  q = q * u + 645961.25f;
  q = q * u + -1281986.625f;
  q = q * u + 2850870.25f;
#endif
  return bow * q + line;
}

}  // namespace attnscope
