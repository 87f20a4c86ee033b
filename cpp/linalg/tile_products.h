// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "simd/number_lanes.h"
#include "simd/power_of_two.h"

// Products of small tiles with one factor in lanes, and squares of lanes turned about their
// diagonal. Only kernel sources include it.
namespace attnscope {

// Vectors of a tile that stand side by side, and the rows of the other factor whose sums are in
// registers together.
#if ATTNSCOPE_PACK_WIDTH == 8
inline constexpr Index kTileVectors = 2;
inline constexpr Index kTileKeys = 4;
#else
inline constexpr Index kTileVectors = 4;
inline constexpr Index kTileKeys = 3;
#endif

template <class Float>
inline constexpr Index kFloatLanes = static_cast<Index>(kLanes<Float>);

// How many numbers stand side by side in a tile.
template <class Float>
inline constexpr Index kTileWidth = kTileVectors * kFloatLanes<Float>;

template <class Float>
inline FloatsOf<Float> floats_at(const Float* from) {
  return vector_at<FloatsOf<Float>>(from);
}

template <class Float>
inline FloatsOf<Float> larger_of(FloatsOf<Float> a, FloatsOf<Float> b) {
  return a > b ? a : b;
}
template <class Float>
inline FloatsOf<Float> smaller_of(FloatsOf<Float> a, FloatsOf<Float> b) {
  return a < b ? a : b;
}
template <class Float>
inline FloatsOf<Float> magnitude_of(FloatsOf<Float> x) {
  using Numbers = typename VectorOf<Float>::Numbers;
  using Number = std::conditional_t<sizeof(Float) == 4, std::int32_t, std::int64_t>;
  return reinterpret_cast<FloatsOf<Float>>(reinterpret_cast<Numbers>(x) &
                                           std::numeric_limits<Number>::max());
}

// Entry k is entry places[k] of a and b, one behind the other. Clang has no shuffle with places in
// a vector.
template <class Float>
[[gnu::always_inline]] inline FloatsOf<Float> picked_of(FloatsOf<Float> a, FloatsOf<Float> b,
                                                        typename VectorOf<Float>::Numbers places) {
#if defined(__clang__)
  FloatsOf<Float> result{};
  for (Index k = 0; k < kFloatLanes<Float>; ++k) {
    result[k] = places[k] < kFloatLanes<Float> ? a[places[k]] : b[places[k] - kFloatLanes<Float>];
  }
  return result;
#else
  return __builtin_shuffle(a, b, places);
#endif
}

// Turns a square of lanes about its diagonal, or, for kSum, leaves in lane k of x[0] the sum of the
// lanes of x[k].
template <class Float, bool kSum, Index kStride = 1>
[[gnu::always_inline]] inline void turn_lanes(FloatsOf<Float> (&x)[kFloatLanes<Float>]) {
  constexpr Index kLaneCount = kFloatLanes<Float>;
  typename VectorOf<Float>::Numbers low{}, high{};
  for (Index k = 0; k < kLaneCount; ++k) {
    low[k] = static_cast<int>((k & kStride) != 0 ? (k ^ kStride) + kLaneCount : k);
    high[k] = static_cast<int>((k & kStride) != 0 ? k + kLaneCount : k ^ kStride);
  }
#pragma GCC unroll 16
  for (Index k = 0; k < kLaneCount; ++k) {
    if ((k & kStride) != 0 || (kSum && k % kStride != 0)) continue;
    const FloatsOf<Float> a = picked_of<Float>(x[k], x[k + kStride], low);
    const FloatsOf<Float> b = picked_of<Float>(x[k], x[k + kStride], high);
    x[k] = kSum ? a + b : a;
    if (!kSum) x[k + kStride] = b;
  }
  if constexpr (2 * kStride < kLaneCount) turn_lanes<Float, kSum, 2 * kStride>(x);
}

// Terms of a product that are added in one chain; adding the sums of chains halves the error.
inline constexpr Index kChainTerms = 32;

// out[r][lanes] (+)= Σ_{k<depth} lanes[k][lanes]·rows[r·row_stride + k] for kRows rows of kVectors
// vectors.
template <class Float, Index kVectors, Index kRows>
[[gnu::always_inline]] inline void multiply_chain(const Float* lanes, Index lane_stride,
                                                  Index depth, const Float* rows, Index row_stride,
                                                  Float* out, Index out_stride, bool add) {
  using Floats = FloatsOf<Float>;
  Floats sums[kRows][kVectors] = {};
  for (Index k = 0; k < depth; ++k) {
    Floats x[kVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v)
      x[v] = floats_at(lanes + k * lane_stride + v * kFloatLanes<Float>);
#pragma GCC unroll 8
    for (Index r = 0; r < kRows; ++r) {
      const Float factor = rows[r * row_stride + k];
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) sums[r][v] += x[v] * factor;
    }
  }
#pragma GCC unroll 8
  for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      Float* const to = out + r * out_stride + v * kFloatLanes<Float>;
      put(to, add ? floats_at(to) + sums[r][v] : sums[r][v]);
    }
  }
}

template <class Float, Index kVectors, Index kRows>
[[gnu::always_inline]] inline void multiply_chains(const Float* lanes, Index lane_stride,
                                                   Index depth, const Float* rows, Index row_stride,
                                                   Float* out, Index out_stride, bool add) {
  for (Index k = 0; k < depth; k += kChainTerms) {
    multiply_chain<Float, kVectors, kRows>(lanes + k * lane_stride, lane_stride,
                                           std::min(kChainTerms, depth - k), rows + k, row_stride,
                                           out, out_stride, add || k > 0);
  }
}

// The product of `count` rows, each out_stride behind the last. `ahead`: bytes of a row that are
// asked for two steps before they are read, 0 where they are in a cache; beyond the second cache
// waiting doubles the time. A call of its own, because inlined its addresses would not fit into
// registers.
template <class Float, Index kVectors, Index kRows>
[[gnu::noinline]] void multiply_tile(const Float* lanes, Index lane_stride, Index depth,
                                     const Float* rows, Index row_stride, Index count, Float* out,
                                     Index out_stride, bool add, Index ahead) {
  Index r = 0;
  for (; r + kRows <= count; r += kRows) {
    for (Index k = 0; ahead > 0 && k < kRows; ++k) {
      const auto* const row =
          reinterpret_cast<const char*>(rows + (r + 2 * kRows + k) * row_stride);
      for (Index byte = 0; byte < ahead; byte += Ahead::kLine) __builtin_prefetch(row + byte);
    }
    multiply_chains<Float, kVectors, kRows>(lanes, lane_stride, depth, rows + r * row_stride,
                                            row_stride, out + r * out_stride, out_stride, add);
  }
  for (; r < count; ++r) {
    multiply_chains<Float, kVectors, 1>(lanes, lane_stride, depth, rows + r * row_stride,
                                        row_stride, out + r * out_stride, out_stride, add);
  }
}

// Sums of products of pairs of bfloat16 in one instruction. It is no part of the instruction sets
// that the core is built for, so these functions are compiled for it and called where the processor
// has it.
#if defined(ATTNSCOPE_AVX512_PACKS) && !defined(__clang__)
#define ATTNSCOPE_BFLOAT_PAIRS
inline bool multiplies_pairs() {
  static const bool has_instruction = __builtin_cpu_supports("avx512bf16") > 0;
  return has_instruction;
}

template <Index kRows>
[[gnu::target("avx512bf16,prefer-vector-width=512")]] inline void multiply_pair_rows(
    const std::uint32_t* lanes, Index depth, const std::uint16_t* rows, Index row_stride,
    float scale, float* out) {
  __m512 sums[kRows][kTileVectors];
#pragma GCC unroll 8
  for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (Index v = 0; v < kTileVectors; ++v) sums[r][v] = _mm512_setzero_ps();
  }
  for (Index k = 0; k < depth; ++k) {
    __m512bh x[kTileVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kTileVectors; ++v) {
      x[v] = (__m512bh)_mm512_loadu_si512(lanes + (k * kTileVectors + v) * 16);
    }
#pragma GCC unroll 8
    for (Index r = 0; r < kRows; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, rows + r * row_stride + 2 * k, sizeof(pair));
      const __m512bh factor = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (Index v = 0; v < kTileVectors; ++v) {
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x[v], factor);
      }
    }
  }
#pragma GCC unroll 8
  for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (Index v = 0; v < kTileVectors; ++v) {
      _mm512_storeu_ps(out + (r * kTileVectors + v) * 16,
                       _mm512_mul_ps(sums[r][v], _mm512_set1_ps(scale)));
    }
  }
}

// out[r][lanes] = scale·Σ over pairs of lanes[k][lanes]·rows[r·row_stride + k] for `count` rows.
[[gnu::target("avx512bf16,prefer-vector-width=512"), gnu::noinline]] inline void multiply_pairs(
    const std::uint32_t* lanes, Index depth, const std::uint16_t* rows, Index row_stride,
    Index count, float scale, float* out) {
  constexpr Index kWidth = kTileVectors * 16;
  Index r = 0;
  for (; r + kTileKeys <= count; r += kTileKeys) {
    for (Index k = 0; k < kTileKeys; ++k) {
      const auto* const row =
          reinterpret_cast<const char*>(rows + (r + 2 * kTileKeys + k) * row_stride);
      for (Index byte = 0; byte < 4 * depth; byte += Ahead::kLine) __builtin_prefetch(row + byte);
    }
    multiply_pair_rows<kTileKeys>(lanes, depth, rows + r * row_stride, row_stride, scale,
                                  out + r * kWidth);
  }
  for (; r < count; ++r)
    multiply_pair_rows<1>(lanes, depth, rows + r * row_stride, row_stride, scale, out + r * kWidth);
}
#endif

}  // namespace attnscope
