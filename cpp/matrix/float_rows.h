// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cassert>

#include "matrix/rows.h"
#include "simd/logarithm.h"

// Sums along rows in float32, for `fast`: twice as many lanes as float64 has. Chains of additions
// are short, and what they give is added up in float64. Only kernel sources include it.
namespace attnscope {

inline constexpr Index kFloatWidth = 2 * kPackWidth;

// kFloatWidth entries of a row; half types are widened on the way.
inline FloatVector load_floats(const float* from) { return vector_at<FloatVector>(from); }

inline FloatVector load_floats(const Eigen::bfloat16* from) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  const __m512i halves = _mm512_cvtepu16_epi32(vector_at<__m256i>(from));
  return reinterpret_cast<FloatVector>(_mm512_slli_epi32(halves, 16));
#else
  FloatVector lanes;
  for (Index k = 0; k < kFloatWidth; ++k) lanes[k] = static_cast<float>(from[k]);
  return lanes;
#endif
}

inline FloatVector load_floats(const Eigen::half* from) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return reinterpret_cast<FloatVector>(_mm512_cvtph_ps(vector_at<__m256i>(from)));
#elif defined(ATTNSCOPE_AVX_PACKS) && defined(__F16C__)
  return reinterpret_cast<FloatVector>(_mm256_cvtph_ps(vector_at<__m128i>(from)));
#else
  FloatVector lanes;
  for (Index k = 0; k < kFloatWidth; ++k) lanes[k] = static_cast<float>(from[k]);
  return lanes;
#endif
}

// The lanes from `begin` to `end`, zeros elsewhere.
inline FloatVector lanes_between(FloatVector x, Index begin, Index end) {
  IntVector lane;
  for (Index k = 0; k < kFloatWidth; ++k) lane[k] = static_cast<std::int32_t>(k);
  const IntVector inside = (lane >= static_cast<std::int32_t>(begin) - IntVector{}) &
                           (lane < static_cast<std::int32_t>(end) - IntVector{});
  return reinterpret_cast<FloatVector>(reinterpret_cast<IntVector>(x) & inside);
}

// The first half of a vector of float32 numbers as float64, and the second.
inline Lanes low_lanes(FloatVector x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return reinterpret_cast<Lanes>(
      _mm512_cvtps_pd(_mm512_castps512_ps256(reinterpret_cast<__m512>(x))));
#elif defined(ATTNSCOPE_AVX_PACKS)
  return reinterpret_cast<Lanes>(
      _mm256_cvtps_pd(_mm256_castps256_ps128(reinterpret_cast<__m256>(x))));
#else
  float lanes[kFloatWidth];
  put(lanes, x);
  return load(lanes);
#endif
}
inline Lanes high_lanes(FloatVector x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return reinterpret_cast<Lanes>(
      _mm512_cvtps_pd(_mm512_extractf32x8_ps(reinterpret_cast<__m512>(x), 1)));
#elif defined(ATTNSCOPE_AVX_PACKS)
  return reinterpret_cast<Lanes>(
      _mm256_cvtps_pd(_mm256_extractf128_ps(reinterpret_cast<__m256>(x), 1)));
#else
  float lanes[kFloatWidth];
  put(lanes, x);
  return load(lanes + kPackWidth);
#endif
}

// The lanes of a sum in float32 added to one in float64, of half as many lanes.
inline Lanes plus_floats(Lanes sum, FloatVector x) { return sum + low_lanes(x) + high_lanes(x); }

// Vectors that are added up in float32 before their sum goes to float64.
inline constexpr Index kChain = 8;

// visit(lanes, j, chain) for the entries [0, end) of a row, `end` <= n of which may be read: whole
// vectors from j = 0 on, chain 0 and 1 in turn, and a last one with zeros in lanes that came
// before or lie behind the end. flush() after every kChain vectors of both chains, and last, so
// that zeros behind the end change no bit.
template <class Entry, class Visit, class Flush>
[[gnu::always_inline]] inline void for_each_floats(const Entry* row, Index end, Index n,
                                                   Visit&& visit, Flush&& flush) {
  assert(end <= n);
  const auto visit_two = [&](Index j) {
    visit(load_floats(row + j), j, 0);
    visit(load_floats(row + j + kFloatWidth), j + kFloatWidth, 1);
  };
  Index j = 0;
  while (j + 2 * kChain * kFloatWidth <= end) {
    for (const Index stop = j + 2 * kChain * kFloatWidth; j < stop; j += 2 * kFloatWidth)
      visit_two(j);
    flush();
  }
  for (; j + 2 * kFloatWidth <= end; j += 2 * kFloatWidth) visit_two(j);
  for (int chain = 0; j < end; chain = 1, j += kFloatWidth) {
    if (j + kFloatWidth <= n) {
      const FloatVector x = load_floats(row + j);
      visit(j + kFloatWidth <= end ? x : lanes_between(x, 0, end - j), j, chain);
    } else if (n >= kFloatWidth) {
      // a vector that begins before j, so that no entry behind the row is read
      const Index first = n - kFloatWidth;
      visit(lanes_between(load_floats(row + first), j - first, end - first), first, chain);
    } else {
      FloatVector x{};
      for (Index k = j; k < end; ++k) x[k - j] = static_cast<float>(row[k]);
      visit(x, j, chain);
    }
  }
  flush();
}

// −Σ x log x of a row, from the sum of its terms x·scaled_log2(x).
inline double entropy_of_terms(double sum) {
  constexpr double kLogOfTwo = 0.69314718055994530942;
  return 0.0 - sum * (kLogOfTwo / static_cast<double>(kLogOfDoubling));
}

// −Σ x log x of a row of float32 or half numbers, NaN where an entry is negative. Relative error
// below 2e-6 of Σ |x log x|, but for sums below 1e-30: those hold subnormal numbers, whose
// logarithm is not computed here, and belong to a way in float64.
template <class Entry>
double float_row_entropy(const Entry* row, Index end, Index n) {
  FloatVector chains[2] = {};
  IntVector signs{};  // the sign bit of every lane that met one
  Lanes total{};
  for_each_floats(
      row, end, n,
      [&](FloatVector x, Index, int chain) {
        signs |= reinterpret_cast<IntVector>(x);
        chains[chain] += x * scaled_log2(x);
      },
      [&] {
        total = plus_floats(total, chains[0] + chains[1]);
        chains[0] = chains[1] = FloatVector{};
      });
  // −0 has a sign too, and is no negative entry.
  if (lane_bits(signs) != 0 && std::any_of(row, row + end, [](Entry x) { return x < Entry(0); }))
    return kNaN;
  return entropy_of_terms(sum_by_halves(total));
}

}  // namespace attnscope
