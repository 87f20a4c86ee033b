// SPDX-License-Identifier: MIT
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "simd/lanes.h"

// Vectors of either float type, and of whole numbers, along a row, what their lanes
// come to, and square tiles turned about their diagonal. Only kernel sources include it.
namespace attnscope {

// One vector of Float, and of whole numbers of its size, which a comparison gives: all bits set
// where it holds. Those of float64 are `long`, which a Mac's std::int64_t is not.
constexpr std::size_t kVectorBytes = kPackWidth * sizeof(double);
typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes)));
typedef std::int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef long LongVector __attribute__((vector_size(kVectorBytes)));

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
  for (std::size_t k = 0; k < sizeof(mask) / sizeof(mask[0]); ++k)
    bits |= (mask[k] < 0 ? 1u : 0u) << k;
  return bits;
}
}  // namespace portable

// Bit k is set where lane k of a comparison holds. A template, because the type that clang gives a
// comparison of vectors with attributes is neither of those above.
template <class Vector>
unsigned lane_bits(Vector mask) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  if constexpr (sizeof(mask[0]) == sizeof(float)) {
    return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
  } else {
    return _mm512_movepi64_mask(reinterpret_cast<__m512i>(mask));
  }
#elif defined(ATTNSCOPE_AVX_PACKS)
  if constexpr (sizeof(mask[0]) == sizeof(float)) {
    return static_cast<unsigned>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
  } else {
    return static_cast<unsigned>(_mm256_movemask_pd(reinterpret_cast<__m256d>(mask)));
  }
#else
  return portable::lane_bits(mask);
#endif
}

// Bit k is set where lanes k are equal, and, with `under`, where its sign is set too: no NaN.
inline unsigned equal_bits(FloatVector a, FloatVector b) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_cmpeq_ps_mask(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b));
#else
  return lane_bits(a == b);
#endif
}
inline unsigned equal_bits(DoubleVector a, DoubleVector b) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_cmpeq_pd_mask(reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b));
#else
  return lane_bits(a == b);
#endif
}
inline unsigned equal_bits(FloatVector a, FloatVector b, FloatVector under) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_mask_cmpeq_ps_mask(_mm512_movepi32_mask(reinterpret_cast<__m512i>(under)),
                                   reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b));
#else
  return lane_bits((a == b) & (under < FloatVector{}));
#endif
}
inline unsigned equal_bits(DoubleVector a, DoubleVector b, DoubleVector under) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_mask_cmpeq_pd_mask(_mm512_movepi64_mask(reinterpret_cast<__m512i>(under)),
                                   reinterpret_cast<__m512d>(a), reinterpret_cast<__m512d>(b));
#else
  return lane_bits((a == b) & (under < DoubleVector{}));
#endif
}

namespace portable {
template <class Vector>
auto largest_lane(Vector x) {
  auto largest = x[0];
  for (std::size_t k = 1; k < sizeof(x) / sizeof(x[0]); ++k)
    largest = x[k] > largest ? x[k] : largest;
  return largest;
}
}  // namespace portable

// The largest of all lanes, by halves, which wait for one another less than one by one.
inline float largest_lane(FloatVector x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_reduce_max_ps(reinterpret_cast<__m512>(x));
#elif defined(ATTNSCOPE_AVX_PACKS)
  const __m256 wide = reinterpret_cast<__m256>(x);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(wide), _mm256_extractf128_ps(wide, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
#else
  return portable::largest_lane(x);
#endif
}
inline double largest_lane(DoubleVector x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_reduce_max_pd(reinterpret_cast<__m512d>(x));
#elif defined(ATTNSCOPE_AVX_PACKS)
  const __m256d wide = reinterpret_cast<__m256d>(x);
  const __m128d two = _mm_max_pd(_mm256_castpd256_pd128(wide), _mm256_extractf128_pd(wide, 1));
  return _mm_cvtsd_f64(_mm_max_sd(two, _mm_unpackhi_pd(two, two)));
#else
  return portable::largest_lane(x);
#endif
}

// The sum of all lanes, by halves too.
inline double sum_by_halves(Lanes x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return _mm512_reduce_add_pd(reinterpret_cast<__m512d>(x));
#elif defined(ATTNSCOPE_AVX_PACKS)
  const __m256d wide = reinterpret_cast<__m256d>(x);
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(wide), _mm256_extractf128_pd(wide, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
#else
  double lanes[kPackWidth];
  put(lanes, x);
  for (Index half = kPackWidth / 2; half > 0; half /= 2) {
    for (Index k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  }
  return lanes[0];
#endif
}

constexpr std::size_t kTile = 8;
// Rows and columns of float64 numbers that are turned in registers: as many as fill a vector of
// AVX, of which every row of a tile is two.
constexpr std::size_t kSquare = 4;

namespace portable {
template <std::size_t kSide, class Float>
void transpose(const Float* from, std::size_t from_stride, Float* to, std::size_t to_stride) {
  for (std::size_t i = 0; i < kSide; ++i) {
    for (std::size_t j = 0; j < kSide; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}
template <class Float>
void transpose_tile(const Float* from, std::size_t from_stride, Float* to, std::size_t to_stride) {
  transpose<kTile>(from, from_stride, to, to_stride);
}
}  // namespace portable

// to[j·to_stride + i] = from[i·from_stride + j] for a square of kSquare.
inline void transpose_square(const double* from, std::size_t from_stride, double* to,
                             std::size_t to_stride) {
#if defined(__AVX__)
  const __m256d r0 = _mm256_loadu_pd(from);
  const __m256d r1 = _mm256_loadu_pd(from + from_stride);
  const __m256d r2 = _mm256_loadu_pd(from + 2 * from_stride);
  const __m256d r3 = _mm256_loadu_pd(from + 3 * from_stride);
  const __m256d even01 = _mm256_unpacklo_pd(r0, r1);
  const __m256d odd01 = _mm256_unpackhi_pd(r0, r1);
  const __m256d even23 = _mm256_unpacklo_pd(r2, r3);
  const __m256d odd23 = _mm256_unpackhi_pd(r2, r3);
  _mm256_storeu_pd(to, _mm256_permute2f128_pd(even01, even23, 0x20));
  _mm256_storeu_pd(to + to_stride, _mm256_permute2f128_pd(odd01, odd23, 0x20));
  _mm256_storeu_pd(to + 2 * to_stride, _mm256_permute2f128_pd(even01, even23, 0x31));
  _mm256_storeu_pd(to + 3 * to_stride, _mm256_permute2f128_pd(odd01, odd23, 0x31));
#else
  portable::transpose<kSquare>(from, from_stride, to, to_stride);
#endif
}

// A row of a square tile of kTile.
template <class Float>
struct TileRowOf {
  typedef Float Type __attribute__((vector_size(kTile * sizeof(Float))));
};
template <class Float>
using TileRow = typename TileRowOf<Float>::Type;

#if defined(__AVX__)
// A tile in registers.
inline void transpose_rows(TileRow<float> (&rows)[kTile]) {
  const auto row = [&](std::size_t i) { return reinterpret_cast<__m256>(rows[i]); };
  __m256 t[kTile];
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kTile; i += 2) {
    t[i] = _mm256_unpacklo_ps(row(i), row(i + 1));
    t[i + 1] = _mm256_unpackhi_ps(row(i), row(i + 1));
  }
  __m256 r[kTile];
#pragma GCC unroll 2
  for (std::size_t i = 0; i < kTile; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (std::size_t i = 0; i < kTile / 2; ++i) {
    rows[i] = reinterpret_cast<TileRow<float>>(_mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    rows[i + 4] = reinterpret_cast<TileRow<float>>(_mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#endif

// to[j·to_stride + i] = from[i·from_stride + j] for a square tile of kTile.
inline void transpose_tile(const float* from, std::size_t from_stride, float* to,
                           std::size_t to_stride) {
#if defined(__AVX__)
  TileRow<float> rows[kTile];
  for (std::size_t i = 0; i < kTile; ++i)
    rows[i] = vector_at<TileRow<float>>(from + i * from_stride);
  transpose_rows(rows);
  for (std::size_t i = 0; i < kTile; ++i) put(to + i * to_stride, rows[i]);
#else
  portable::transpose_tile(from, from_stride, to, to_stride);
#endif
}
inline void transpose_tile(const double* from, std::size_t from_stride, double* to,
                           std::size_t to_stride) {
  for (std::size_t i = 0; i < kTile; i += kSquare) {
    for (std::size_t j = 0; j < kTile; j += kSquare)
      transpose_square(from + i * from_stride + j, from_stride, to + j * to_stride + i, to_stride);
  }
}

// The same in registers, of any type.
template <class Row>
void transpose_rows(Row (&rows)[kTile]) {
  using Float = std::remove_reference_t<decltype(rows[0][0])>;
  alignas(64) Float tile[kTile * kTile];
  alignas(64) Float turned[kTile * kTile];
  for (std::size_t i = 0; i < kTile; ++i) put(tile + i * kTile, rows[i]);
  transpose_tile(tile, kTile, turned, kTile);
  for (std::size_t i = 0; i < kTile; ++i) rows[i] = vector_at<Row>(turned + i * kTile);
}

}  // namespace attnscope
