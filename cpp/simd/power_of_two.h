// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <type_traits>

#include "simd/number_lanes.h"

// Powers of two in vectors of either float type. Only kernel sources include it. `bounded_exps` of
// exponential.h is e^x in float64; here the factor log2 e is in the numbers already, and float32
// vectors hold twice as many of them.
namespace attnscope {

template <class Float>
using FloatsOf = typename VectorOf<Float>::Floats;

template <class Float>
inline FloatsOf<Float> broadcast_as(Float value) {
  return value - FloatsOf<Float>{};
}

namespace power_of_two_detail {
template <class Float>
struct Series;
template <>
struct Series<float> {
  typedef std::uint32_t Bits __attribute__((vector_size(kVectorBytes)));
  static constexpr float kRound =
      12582912.0f;  // 1.5·2^23: what is added to it is rounded to a whole number
  static constexpr float kSmallest = -126.0f;
  static constexpr int kMantissa = 23;
  static constexpr int kDegree = 6;
  static constexpr float kCoefficients[] = {1.0f,
                                            0.6931472149680279f,
                                            0.24022652782887738f,
                                            0.05550310551013797f,
                                            0.009617692972993062f,
                                            0.001340664390235176f,
                                            0.0001559467816661632f};
};
template <>
struct Series<double> {
  typedef std::uint64_t Bits __attribute__((vector_size(kVectorBytes)));
  static constexpr double kRound = 6755399441055744.0;  // 1.5·2^52
  static constexpr double kSmallest = -1022.0;
  static constexpr int kMantissa = 52;
  static constexpr int kDegree = 11;
  static constexpr double kCoefficients[] = {
      1.0,
      0.69314718055994569675,
      0.24022650695910098007,
      0.055504108664790394552,
      0.0096181291076070023796,
      0.0013333558153439964747,
      0.0001540353044157213033,
      0.000015252727385193868197,
      1.3215442675329822143e-6,
      1.0180647659234138888e-7,
      7.0725704128144235096e-9,
      4.078071929588336665e-10,
  };
};
}  // namespace power_of_two_detail

// p = 2^x of numbers x <= 0 to 1 ulp; 0 below the smallest normal number and of -infinity, NaN of
// NaN. x = k + f with a whole k and |f| <= 1/2; 2^f is a polynomial fitted to that interval, and k
// is added to its exponent. Every step is taken for all vectors before the next, because a step of
// one waits for its last.
template <class Float, Index kCount>
[[gnu::always_inline]] inline void powers_of_two(const FloatsOf<Float> (&x)[kCount],
                                                 FloatsOf<Float> (&p)[kCount]) {
  using Series = power_of_two_detail::Series<Float>;
  using Floats = FloatsOf<Float>;
  using Bits = typename Series::Bits;
  Floats shifted[kCount], f[kCount];
#pragma GCC unroll 8
  for (Index v = 0; v < kCount; ++v) {
    shifted[v] = x[v] + Series::kRound;
    f[v] = x[v] - (shifted[v] - Series::kRound);
    p[v] =
        f[v] * Series::kCoefficients[Series::kDegree] + Series::kCoefficients[Series::kDegree - 1];
  }
#pragma GCC unroll 12
  for (int power = Series::kDegree - 2; power >= 0; --power) {
#pragma GCC unroll 8
    for (Index v = 0; v < kCount; ++v) p[v] = p[v] * f[v] + Series::kCoefficients[power];
  }
#pragma GCC unroll 8
  for (Index v = 0; v < kCount; ++v) {
    const Bits bits =
        reinterpret_cast<Bits>(p[v]) + (reinterpret_cast<Bits>(shifted[v]) << Series::kMantissa);
    p[v] = x[v] < Series::kSmallest ? Floats{} : reinterpret_cast<Floats>(bits);
  }
}

// The same of one vector.
template <class Float>
inline FloatsOf<Float> power_of_two(FloatsOf<Float> x) {
  FloatsOf<Float> exponent[1] = {x}, power[1];
  powers_of_two<Float>(exponent, power);
  return power[0];
}

}  // namespace attnscope
