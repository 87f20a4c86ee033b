// SPDX-License-Identifier: MIT
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "simd/lanes.h"

// Vectors of either float type, and of whole numbers, along a row. Only kernel sources include it.
namespace attnscope {

// One vector of Float, and of whole numbers of its size, which a comparison gives: all bits set
// where it holds.
constexpr std::size_t kVectorBytes = kPackWidth * sizeof(double);
typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef std::int64_t LongVector __attribute__((vector_size(kVectorBytes)));

template <class Float>
struct VectorOf {
  using Floats = FloatVector;
  using Numbers = IntVector;
};
template <>
struct VectorOf<double> {
  using Floats = DoubleVector;
  using Numbers = LongVector;
};

template <class Float>
constexpr std::size_t kLanes = kVectorBytes / sizeof(Float);

template <class Vector, class T>
Vector vector_at(const T* from) {
  Vector vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <class Vector, class T>
void put(T* to, Vector vector) {
  std::memcpy(to, &vector, sizeof(vector));
}

namespace portable {
template <class Vector>
unsigned lane_bits(Vector mask) {
  unsigned bits = 0;
  for (std::size_t k = 0; k < sizeof(mask) / sizeof(mask[0]); ++k) bits |= (mask[k] < 0 ? 1u : 0u) << k;
  return bits;
}
}  // namespace portable

// Bit k is set where lane k of a comparison holds.
inline unsigned lane_bits(IntVector mask) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(ATTNSCOPE_AVX_PACKS)
  return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#else
  return portable::lane_bits(mask);
#endif
}
inline unsigned lane_bits(LongVector mask) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_movepi64_mask(reinterpret_cast<__m512i>(mask));
#elif defined(ATTNSCOPE_AVX_PACKS)
  return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(mask)));
#else
  return portable::lane_bits(mask);
#endif
}

}  // namespace attnscope
