// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <type_traits>

#include "matrix/rows.h"

// Ways to add up columns in float64, a unit of columns at a time. Each has the entries of a unit in
// `kColumns`, units whose sums are in registers together in `kMost`, and the most rows that are
// added to them in `kMostRows`; of a causal map it adds `kRowsInBand` rows at a time, up to the
// last column that one of them sees: more cost less where adding what is hidden is no work beside
// reading it. `begin` takes up the sums in memory, `add` adds a row of a unit times `factor()`,
// `end` puts sums back, and `sort` brings a unit of them into the order of its columns. Where only
// some entries are held, `look` keeps the largest bits of those that were added in a `Seen`, and
// `holds` says whether all of them were: otherwise the sums are of no use. Every column adds its
// rows in order. Only kernel sources include it.
namespace attnscope {

// A 1 that the compiler does not know to be one: a product with it changes no number, and
// processors that multiply and add in one step do that with other units than those that widen,
// which are all busy.
inline const volatile double kOne = 1.0;

template <class Vector>
Vector plus(Vector sum, Vector x, [[maybe_unused]] Vector factor) {
#if defined(__FMA__)
  return factor * x + sum;
#else
  return sum + x;
#endif
}

// Of ways that hold all entries.
struct AnySeen {
  template <class Scalar>
  static void look(const Scalar*, AnySeen&) {}
  static bool holds(AnySeen) { return true; }
};

// Of ways that hold entries of 16 bits without a sign up to a largest one.
template <std::size_t kBytes, std::uint16_t kLargestBits>
struct SeenBits {
  typedef std::uint16_t Bits __attribute__((vector_size(kBytes)));
  Bits largest{};

  template <class Scalar>
  static void look(const Scalar* from, SeenBits& bits) {
    const Bits x = vector_at<Bits>(from);
    bits.largest = x > bits.largest ? x : bits.largest;
  }
  static bool holds(const SeenBits& bits) {
    typedef std::int16_t Flags __attribute__((vector_size(kBytes)));
    const Flags beyond = bits.largest > kLargestBits;
    std::uint64_t words[kBytes / sizeof(std::uint64_t)];
    std::memcpy(words, &beyond, kBytes);
    return std::all_of(std::begin(words), std::end(words), [](auto word) { return word == 0; });
  }
};

// Sums by half vectors where those are 512 bits long: processors that split whole ones widen those
// in two thirds of the time.
typedef double FourSums __attribute__((vector_size(32)));

// Any entries, a vector of float64 numbers at a time.
template <class Scalar>
struct PlainSums {
  using Sum = Lanes;
  using Seen = AnySeen;
  static constexpr Index kColumns = kPackWidth;
  static constexpr Index kMost = kPackWidth == 8 ? 16 : 8;
  static constexpr Index kMostRows = std::numeric_limits<Index>::max();
  // float32 and float64 maps of 128 and 256 tokens with AVX2: 2 to 9 % less than with 32
  static constexpr Index kRowsInBand = kPackWidth == 8 ? 32 : 16;

  static Sum begin(const double* sums) { return load(sums); }
  static Sum factor() { return broadcast(kOne); }
  static void add(const Scalar* from, Sum factor, Sum& sum) { sum = plus(sum, load(from), factor); }
  static void end(Sum sum, double* sums) { store(sums, sum); }
  static void sort(double*) {}
};

#if defined(ATTNSCOPE_AVX512_PACKS)
// float32 entries.
struct HalfVectorSums {
  using Sum = FourSums;
  using Seen = AnySeen;
  static constexpr Index kColumns = 4;
  static constexpr Index kMost = 16;
  static constexpr Index kMostRows = std::numeric_limits<Index>::max();
  static constexpr Index kRowsInBand = 32;

  static Sum begin(const double* sums) { return vector_at<Sum>(sums); }
  static Sum factor() { return kOne - Sum{}; }
  static void add(const float* from, Sum factor, Sum& sum) {
    sum = plus(sum, reinterpret_cast<Sum>(_mm256_cvtps_pd(_mm_loadu_ps(from))), factor);
  }
  static void end(Sum sum, double* sums) { put(sums, sum); }
  static void sort(double*) {}
};
using Float32Sums = HalfVectorSums;
#else
using Float32Sums = PlainSums<float>;
#endif

// bfloat16 entries that are finite and have no sign, four to a lane of 64 bits: one of them, moved
// to where float64 has its exponent and its first digits, is 2^-896 of its number, subnormal or
// not. Column 4k + q is lane k of sum q until the sums are sorted.
struct BfloatSums {
  struct Sum {
    Lanes quarter[4];
  };
  using Seen = SeenBits<kVectorBytes, 0x7f7f>;
  static constexpr Index kColumns = 4 * kPackWidth;
  static constexpr Index kMost = kPackWidth == 8 ? 4 : 2;
  static constexpr Index kMostRows = std::numeric_limits<Index>::max();
  static constexpr Index kRowsInBand = kColumns;

  static Sum begin(const double* sums) {
    return {{load(sums), load(sums + kPackWidth), load(sums + 2 * kPackWidth),
             load(sums + 3 * kPackWidth)}};
  }
  static Lanes factor() { return broadcast(0x1p896); }
  static void add(const Eigen::bfloat16* from, Lanes factor, Sum& sum) {
    typedef std::uint64_t Words __attribute__((vector_size(kVectorBytes)));
    constexpr std::uint64_t kDigits = std::uint64_t{0xffff} << 45;
    const Words x = vector_at<Words>(from);
    sum.quarter[0] =
        multiply_add(reinterpret_cast<Lanes>((x << 45) & kDigits), factor, sum.quarter[0]);
    sum.quarter[1] =
        multiply_add(reinterpret_cast<Lanes>((x << 29) & kDigits), factor, sum.quarter[1]);
    sum.quarter[2] =
        multiply_add(reinterpret_cast<Lanes>((x << 13) & kDigits), factor, sum.quarter[2]);
    sum.quarter[3] =
        multiply_add(reinterpret_cast<Lanes>((x >> 3) & kDigits), factor, sum.quarter[3]);
  }
  static void end(const Sum& sum, double* sums) {
    for (Index q = 0; q < 4; ++q) store(sums + q * kPackWidth, sum.quarter[q]);
  }
  static void sort(double* sums) {
    const Sum sum = begin(sums);
#pragma GCC unroll 4
    for (Index m = 0; m < 4; ++m) {
      LaneMask of_first{}, of_last{}, of_both{};
      for (Index e = 0; e < kPackWidth; ++e) {
        const Index k = (m * kPackWidth + e) / 4;
        const Index q = (m * kPackWidth + e) % 4;
        of_first[e] = q < 2 ? k + q * kPackWidth : 0;
        of_last[e] = q < 2 ? 0 : k + (q - 2) * kPackWidth;
        of_both[e] = q < 2 ? e : e + kPackWidth;
      }
      store(sums + m * kPackWidth,
            picked(picked(sum.quarter[0], sum.quarter[1], of_first),
                   picked(sum.quarter[2], sum.quarter[3], of_last), of_both));
    }
  }
};

#if defined(ATTNSCOPE_AVX512_PACKS) || \
    (defined(ATTNSCOPE_AVX_PACKS) && defined(__F16C__) && defined(__AVX2__))
// float16 entries of [0, 1] as whole multiples of 2^-24, which all of them are: so many rows fit
// into 32 bits. The sums of other entries wrap.
struct HalfSums {
  typedef std::uint32_t Sum __attribute__((vector_size(32)));
  using Seen = SeenBits<16, 0x3c00>;
  static constexpr Index kColumns = 8;
  static constexpr Index kMost = 8;
  static constexpr Index kMostRows = 64;
  static constexpr Index kRowsInBand = 16;

  static Sum begin(const double*) { return Sum{}; }
  static __m256 factor() { return _mm256_set1_ps(0x1p24f); }
  static void add(const Eigen::half* from, __m256 factor, Sum& sum) {
    const __m256 wide = _mm256_cvtph_ps(vector_at<__m128i>(from));
    sum += reinterpret_cast<Sum>(_mm256_cvttps_epi32(_mm256_mul_ps(wide, factor)));
  }
  static void end(Sum sum, double* sums) {
    const auto words = reinterpret_cast<__m256i>(sum);
    const auto low = reinterpret_cast<FourSums>(_mm256_cvtepi32_pd(_mm256_castsi256_si128(words)));
    const auto high =
        reinterpret_cast<FourSums>(_mm256_cvtepi32_pd(_mm256_extracti128_si256(words, 1)));
    put(sums, vector_at<FourSums>(sums) + low * 0x1p-24);
    put(sums + 4, vector_at<FourSums>(sums + 4) + high * 0x1p-24);
  }
  static void sort(double*) {}
};
using Float16Sums = HalfSums;
#else
using Float16Sums = PlainSums<Eigen::half>;
#endif

// The fastest way of an element type.
template <class Scalar>
using FastestSums =
    std::conditional_t<std::is_same_v<Scalar, float>, Float32Sums,
                       std::conditional_t<std::is_same_v<Scalar, Eigen::bfloat16>, BfloatSums,
                                          std::conditional_t<std::is_same_v<Scalar, Eigen::half>,
                                                             Float16Sums, PlainSums<Scalar>>>>;

}  // namespace attnscope
