// SPDX-License-Identifier: MIT
#pragma once

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "simd/number_lanes.h"

// Prim's steps over rows of similarities, 64 vertices at a time so that a word holds a bit for each
// of them. kWords is the number of words where the compiler is to unroll, 0 where a number tells it
// at run time. Only kernel sources include it.
namespace attnscope {

inline constexpr std::size_t kVerticesInWord = 64;
template <class Float>
inline constexpr std::size_t kVectorsInWord = kVerticesInWord / kLanes<Float>;

namespace portable {
template <class Floats>
std::uint64_t equal_word(const Floats* numbers, Floats value) {
  constexpr std::size_t kWidth = sizeof(Floats) / sizeof(numbers[0][0]);
  std::uint64_t word = 0;
#pragma GCC unroll 32
  for (std::size_t k = 0; k < kVerticesInWord / kWidth; ++k)
    word |= std::uint64_t{equal_bits(numbers[k], value)} << (k * kWidth);
  return word;
}
}  // namespace portable

// Bit k is set where number k of 64 is in its lane what `value` is.
inline std::uint64_t equal_word(const FloatVector* numbers, FloatVector value) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  __mmask16 equal[4];
  for (std::size_t k = 0; k < 4; ++k)
    equal[k] =
        _mm512_cmpeq_ps_mask(reinterpret_cast<__m512>(numbers[k]), reinterpret_cast<__m512>(value));
  return _cvtmask64_u64(
      _mm512_kunpackd(_mm512_kunpackw(equal[3], equal[2]), _mm512_kunpackw(equal[1], equal[0])));
#else
  return portable::equal_word(numbers, value);
#endif
}
inline std::uint64_t equal_word(const DoubleVector* numbers, DoubleVector value) {
  return portable::equal_word(numbers, value);
}

// The vertices of a tree, and what is known of those outside it.
template <class Float, std::size_t kWords>
class TreeSteps {
 public:
  using Floats = typename VectorOf<Float>::Floats;
  using Numbers = typename VectorOf<Float>::Numbers;
  static constexpr Float kInfinity = std::numeric_limits<Float>::infinity();

  // `best`, `cap` and `inside` are scratch of `words` words of vertices, `best` only where kWords
  // is 0.
  TreeSteps(std::size_t n, std::size_t words, Float* best, Float* cap, std::uint64_t* inside)
      : words_(words), in_memory_(best), cap_(cap), inside_(inside) {
    for (std::size_t k = 0; k < vectors(); ++k) put_best(k, -kInfinity - Floats{});
    for (std::size_t j = 0; j < words_of() * kVerticesInWord; ++j)
      cap_[j] = j < n ? kInfinity : -kInfinity;
    // Beyond n there is nothing outside. Nothing is inside there either, but of equal numbers in a
    // row the first counts, which is a vertex's.
    for (std::size_t w = 0; w < words_of(); ++w) {
      const std::size_t first = w * kVerticesInWord;
      const std::size_t vertices = n > first ? std::min(n - first, kVerticesInWord) : 0;
      inside_[w] = vertices == kVerticesInWord ? 0 : ~std::uint64_t{0} << vertices;
    }
    for (std::size_t k = 0; k < kWidth; ++k) lane_[k] = static_cast<Lane>(k);
  }

  // Takes a ring of vertices into the tree: `vertex`, next[vertex] and so on until it comes round,
  // where row_at(v) are the similarities of v to all. Returns the largest between the tree and what
  // is outside, −∞ where nothing joins them.
  template <class RowAt>
  Float take(std::size_t vertex, const std::uint32_t* next, RowAt row_at) {
    put_inside(vertex);
    const Float* row = row_at(vertex);
    for (std::size_t v = next[vertex]; v != vertex; v = next[v]) {
      put_inside(v);
#pragma GCC unroll 32
      for (std::size_t k = 0; k < vectors(); ++k) {
        const Floats read = vector_at<Floats>(row + k * kWidth);
        put_best(k, read > best(k) ? read : best(k));
      }
      row = row_at(v);
    }
    Floats tops[kTops];
    for (Floats& top : tops) top = -kInfinity - Floats{};
#pragma GCC unroll 32
    for (std::size_t k = 0; k < vectors(); ++k) {
      const Floats outside = larger_outside(k, vector_at<Floats>(row + k * kWidth), best(k));
      put_best(k, outside);
      Floats& top = tops[k % kTops];
      top = outside > top ? outside : top;
    }
    const Floats low = tops[0] > tops[1] ? tops[0] : tops[1];
    const Floats high = tops[2] > tops[3] ? tops[2] : tops[3];
    return largest_lane(low > high ? low : high);
  }

  // Calls visit(vertex) for those outside whose similarity to the tree is `value`.
  template <class Visit>
  void for_each_nearest(Float value, Visit&& visit) const {
    for (std::size_t w = 0; w < words_of(); ++w) {
      for (std::uint64_t word = nearest_word(w, value); word != 0; word &= word - 1)
        visit(w * kVerticesInWord + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }

  // The first of them, and how many there are. Without a branch, because none could be foreseen.
  struct Nearest {
    std::size_t first;
    std::size_t count;
  };
  Nearest nearest(Float value) const {
    Nearest nearest{kNowhere, 0};
#pragma GCC unroll 4
    for (std::size_t w = 0; w < words_of(); ++w) {
      const std::uint64_t word = nearest_word(w, value);
      nearest.count += static_cast<std::size_t>(std::popcount(word));
      nearest.first = std::min(nearest.first, first_place(w, word));
    }
    return nearest;
  }

  // The first vertex of the tree whose similarity in `row` is `value`; there is one.
  std::size_t first_inside(const Float* row, Float value) const {
    std::size_t first = kNowhere;
#pragma GCC unroll 4
    for (std::size_t w = 0; w < words_of(); ++w) {
      Floats numbers[kVectorsInWord<Float>];
#pragma GCC unroll 32
      for (std::size_t k = 0; k < kVectorsInWord<Float>; ++k)
        numbers[k] = vector_at<Floats>(row + w * kVerticesInWord + k * kWidth);
      const std::uint64_t word = equal_word(numbers, value - Floats{}) & inside_[w];
      first = std::min(first, first_place(w, word));
    }
    return first;
  }

 private:
  using Lane = std::remove_reference_t<decltype(Numbers{}[0])>;
  static constexpr std::size_t kWidth = kLanes<Float>;
  static constexpr std::size_t kTops = 4;
  static constexpr std::size_t kNowhere = ~std::size_t{0};

  // Whether lanes are chosen by the bits of `inside_`, which spares a read and a minimum per
  // vector, and not by `cap_`.
#if defined(ATTNSCOPE_AVX512_PACKS)
  static constexpr bool kMasks = std::is_same_v<Float, float>;
#else
  static constexpr bool kMasks = false;
#endif

  void put_inside(std::size_t vertex) {
    inside_[vertex / kVerticesInWord] |= std::uint64_t{1} << vertex % kVerticesInWord;
    if constexpr (!kMasks) {
      // Written as a whole vector, because a narrower store would hold up the reads that follow.
      const std::size_t first = vertex / kWidth * kWidth;
      const Numbers joins = lane_ == static_cast<Lane>(vertex - first);
      put(cap_ + first, joins ? -kInfinity - Floats{} : vector_at<Floats>(cap_ + first));
    }
  }

  // The larger of two vectors for the vertices of vector k, −∞ for those inside.
  Floats larger_outside(std::size_t k, Floats read, Floats old) const {
#if defined(ATTNSCOPE_AVX512_PACKS)
    if constexpr (kMasks) {
      const auto outside = static_cast<__mmask16>(~inside_[k / 4] >> k % 4 * kWidth);
      return reinterpret_cast<Floats>(_mm512_mask_max_ps(_mm512_set1_ps(-kInfinity), outside,
                                                         reinterpret_cast<__m512>(read),
                                                         reinterpret_cast<__m512>(old)));
    } else {
      return larger_below_cap(k, read, old);
    }
#else
    return larger_below_cap(k, read, old);
#endif
  }
  Floats larger_below_cap(std::size_t k, Floats read, Floats old) const {
    const Floats limit = vector_at<Floats>(cap_ + k * kWidth);
    const Floats better = read > old ? read : old;
    return better < limit ? better : limit;
  }

  // The vertex of the first bit of word w, far off where it has none.
  static std::size_t first_place(std::size_t w, std::uint64_t word) {
    const auto place = w * kVerticesInWord + static_cast<std::size_t>(std::countr_zero(word));
    return place | std::size_t{word == 0} << 32;
  }

  std::size_t words_of() const { return kWords > 0 ? kWords : words_; }
  std::size_t vectors() const { return words_of() * kVectorsInWord<Float>; }
  Floats best(std::size_t k) const {
    if constexpr (kWords > 0) {
      return best_[k];
    } else {
      return vector_at<Floats>(in_memory_ + k * kWidth);
    }
  }
  void put_best(std::size_t k, Floats similarities) {
    if constexpr (kWords > 0) {
      best_[k] = similarities;
    } else {
      put(in_memory_ + k * kWidth, similarities);
    }
  }
  std::uint64_t nearest_word(std::size_t w, Float value) const {
    Floats numbers[kVectorsInWord<Float>];
#pragma GCC unroll 32
    for (std::size_t k = 0; k < kVectorsInWord<Float>; ++k)
      numbers[k] = best(w * kVectorsInWord<Float> + k);
    return equal_word(numbers, value - Floats{});
  }

  std::size_t words_;
  Floats best_[kWords > 0 ? kWords * kVectorsInWord<Float> : 1];
  Float* in_memory_;
  Float* cap_;
  std::uint64_t* inside_;
  Numbers lane_;
};

}  // namespace attnscope
