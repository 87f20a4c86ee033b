// SPDX-License-Identifier: MIT
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstddef>

#include "simd/lanes.h"

// Square tiles turned about their diagonal. Only kernel sources include it.
namespace attnscope {

constexpr std::size_t kTile = 8;

namespace portable {
template <class Float>
void transpose_tile(const Float* from, std::size_t from_stride, Float* to, std::size_t to_stride) {
  for (std::size_t i = 0; i < kTile; ++i) {
    for (std::size_t j = 0; j < kTile; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
}
}  // namespace portable

// to[j·to_stride + i] = from[i·from_stride + j] for a square tile of kTile.
inline void transpose_tile(const float* from, std::size_t from_stride, float* to, std::size_t to_stride) {
#if defined(__AVX__)
  __m256 r[8];
  for (std::size_t i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
  __m256 t[8];
  for (std::size_t i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (std::size_t i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
#else
  portable::transpose_tile(from, from_stride, to, to_stride);
#endif
}
inline void transpose_tile(const double* from, std::size_t from_stride, double* to, std::size_t to_stride) {
  portable::transpose_tile(from, from_stride, to, to_stride);
}

}  // namespace attnscope
