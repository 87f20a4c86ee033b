// SPDX-License-Identifier: MIT
#pragma once

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "homology/edge_order.h"
#include "homology/tree_scratch.h"
#include "matrix/radix_sort.h"
#include "simd/number_lanes.h"

// Edges side by side in the lanes of a vector. Only kernel sources include it.
namespace attnscope {

namespace portable {
template <class Floats, class Numbers, class Float>
auto smallest_where_equal(Floats x, Float value, Numbers numbers) {
  auto smallest = std::numeric_limits<std::remove_reference_t<decltype(numbers[0])>>::max();
  for (std::size_t k = 0; k < sizeof(x) / sizeof(x[0]); ++k)
    smallest = x[k] == value && numbers[k] < smallest ? numbers[k] : smallest;
  return smallest;
}
}  // namespace portable

// The smallest of the numbers in the lanes where x is `value`, the largest number there is where
// none is.
inline std::int32_t smallest_where_equal(FloatVector x, float value, IntVector numbers) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  const __mmask16 equal = _mm512_cmpeq_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(value));
  return _mm512_mask_reduce_min_epi32(equal, reinterpret_cast<__m512i>(numbers));
#elif defined(ATTNSCOPE_AVX_PACKS) && defined(__AVX2__)
  const IntVector last = std::numeric_limits<std::int32_t>::max() - IntVector{};
  const __m256i chosen = reinterpret_cast<__m256i>(x == value ? numbers : last);
  const __m128i four =
      _mm_min_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
  const __m128i two = _mm_min_epi32(four, _mm_unpackhi_epi64(four, four));
  return _mm_cvtsi128_si32(_mm_min_epi32(two, _mm_shuffle_epi32(two, 1)));
#else
  return portable::smallest_where_equal(x, value, numbers);
#endif
}
inline long smallest_where_equal(DoubleVector x, double value, LongVector numbers) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  const __mmask8 equal = _mm512_cmpeq_pd_mask(reinterpret_cast<__m512d>(x), _mm512_set1_pd(value));
  return _mm512_mask_reduce_min_epi64(equal, reinterpret_cast<__m512i>(numbers));
#else
  return portable::smallest_where_equal(x, value, numbers);
#endif
}

// The sum makes one of both zeros.
template <class Float>
EdgeRank<Float> rank_of(Float similarity, Edge edge) {
  const FloatKey<Float> falling = ~ordered_key(similarity + Float(0));
  return static_cast<EdgeRank<Float>>(falling) << 32 | edge;
}
template <class Float>
Float similarity_of(EdgeRank<Float> rank) {
  return float_of_key<Float>(~static_cast<FloatKey<Float>>(rank >> 32));
}

// Where the vector that holds a column begins.
template <class Float>
std::size_t block_of(std::size_t column) {
  return column / kLanes<Float> * kLanes<Float>;
}

// Vectors of similarities to the vertices of a row of a matrix, and of their edges.
template <class Float>
struct EdgeLanes {
  using Floats = typename VectorOf<Float>::Floats;
  using Numbers = typename VectorOf<Float>::Numbers;
  using Lane = std::remove_reference_t<decltype(Numbers{}[0])>;
  static constexpr Float kInfinity = std::numeric_limits<Float>::infinity();
  static constexpr Lane kLast = std::numeric_limits<Lane>::max();

  Floats similarity = -kInfinity - Floats{};
  Numbers edge = kLast - Numbers{};

  // Whole numbers have a sign; those of 32 bits are turned about so that edges keep their order.
  static constexpr Lane kTurned = sizeof(Lane) == 4 ? std::numeric_limits<Lane>::min() : Lane{0};

  // The columns from `first` on.
  static Numbers columns(std::size_t first) {
    Numbers column;
    for (std::size_t k = 0; k < kLanes<Float>; ++k) column[k] = static_cast<Lane>(k);
    return column + static_cast<Lane>(first);
  }
  // The edges of vertex i with vertices of smaller numbers.
  static Numbers edges_below(std::size_t i, Numbers columns) {
    return columns + (static_cast<Lane>(i << 16) ^ kTurned);
  }
  // The same in the vector that the diagonal lies in, kLast where there is none.
  static Numbers edges_at_diagonal(std::size_t i) {
    const Numbers column = columns(block_of<Float>(i));
    const Numbers is_below = column < static_cast<Lane>(i) - Numbers{};
    return is_below ? edges_below(i, column) : kLast - Numbers{};
  }

  // Takes the others, whose edges come later, where they are nearer.
  void take_later(Floats other, Numbers other_edge) {
    edge = other > similarity ? other_edge : edge;
    similarity = other > similarity ? other : similarity;
  }
  // Takes the others where they are nearer, or as near and their edges come first.
  void take(Floats other, Numbers other_edge) {
    const Numbers takes = (other > similarity) | ((other == similarity) & (other_edge < edge));
    edge = takes ? other_edge : edge;
    similarity = other > similarity ? other : similarity;
  }
  // The nearest of all lanes.
  EdgeRank<Float> nearest() const {
    const Float largest = largest_lane(similarity);
    return rank_of(largest, edge_of(smallest_where_equal(similarity, largest, edge)));
  }
  static Edge edge_of(Lane number) { return static_cast<Edge>(number ^ kTurned); }
};

}  // namespace attnscope
