// SPDX-License-Identifier: MIT
#pragma once

#include "simd/number_lanes.h"

// Sums over the lanes of a vector. Only kernel sources include it.
namespace attnscope {

// The sum of all lanes by halves, which wait for one another less than one by one.
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

}  // namespace attnscope
