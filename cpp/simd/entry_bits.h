// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "simd/number_lanes.h"

// The bits of entries along a row, vector by vector: what says whether numbers are finite or 0
// without widening them. Only kernel sources include it.
namespace attnscope {

// kBytes of contiguous entries as whole numbers of their size.
template <class Scalar, std::size_t kBytes = kVectorBytes>
struct EntryBits {
  static constexpr Index kEntries = static_cast<Index>(kBytes / sizeof(Scalar));
  using Number =
      std::conditional_t<sizeof(Scalar) == 2, std::int16_t,
                         std::conditional_t<sizeof(Scalar) == 4, std::int32_t, std::int64_t>>;
  using Unsigned = std::make_unsigned_t<Number>;
  typedef Number Block __attribute__((vector_size(kBytes)));
  typedef Unsigned UnsignedBlock __attribute__((vector_size(kBytes)));

  static Block at(const Scalar* from) { return vector_at<Block>(from); }

  // All bits set in the lanes from `first` on: in all where it is 0 or below.
  static Block lanes_from(Index first) {
    return lanes_after(std::clamp<Index>(first, 0, kEntries), 0);
  }

  // The same of the lanes from first + count on, where both and their sum are in [0, kEntries].
  static Block lanes_after(Index first, Index count) {
    Block lane;
    for (Index k = 0; k < kEntries; ++k) lane[k] = static_cast<Number>(k);
    return lane >= (static_cast<Number>(first + count) - Block{});
  }

  // Whether a lane of or'ed blocks has a bit beside its sign.
  static bool any_magnitude(Block bits) {
    const Block magnitudes = bits & std::numeric_limits<Number>::max();
    std::int64_t words[kBytes / sizeof(std::int64_t)];
    std::memcpy(words, &magnitudes, sizeof(words));
    std::int64_t all = 0;
    for (const std::int64_t word : words) all |= word;
    return all != 0;
  }
};

// Whether entries of any number of runs are finite: at most one instruction for each vector, and
// several chains of them, because each waits for its last.
template <class Scalar>
class FiniteEntries {
 public:
  using Bits = EntryBits<Scalar>;
  static constexpr Index kEntries = Bits::kEntries;

  // A run of at least kEntries contiguous entries, the last vector of which may overlap another.
  void add(const Scalar* run, Index count) {
    assert(count >= kEntries);
    Index j = 0;
    for (; j + kChains * kEntries <= count; j += kChains * kEntries) {
#pragma GCC unroll 8
      for (Index c = 0; c < kChains; ++c) look(run + j + c * kEntries, c);
    }
    for (; j + kEntries <= count; j += kEntries) look(run + j, 0);
    if (j < count) look(run + count - kEntries, 1);
  }

  // The same of `runs` runs, `stride` apart: a chain for each of some, which may be short.
  void add_runs(const Scalar* run, Index stride, Index count, Index runs) {
    assert(count >= kEntries);
    const auto look_at = [&](Index j) {
#pragma GCC unroll 8
      for (Index c = 0; c < kChains; ++c) look(run + c * stride + j, c);
    };
    for (; runs >= kChains; runs -= kChains, run += kChains * stride) {
      Index j = 0;
      for (; j + kEntries <= count; j += kEntries) look_at(j);
      if (j < count) look_at(count - kEntries);
    }
    for (; runs > 0; --runs, run += stride) add(run, count);
  }

  // True where all entries are finite. False where one is not or, but for float64, where one has a
  // sign: then their magnitudes have to be looked at.
  bool all_are_surely_finite() const {
    if constexpr (std::is_same_v<Scalar, double>) {
      DoubleVector sum = chains_[0];
      for (Index c = 1; c < kChains; ++c) sum += chains_[c];
      return lane_bits(sum == 0.0) == (1u << kEntries) - 1u;
    } else {
      const Scalar infinity = std::numeric_limits<Scalar>::infinity();
      Unsigned limit;
      std::memcpy(&limit, &infinity, sizeof(limit));
      return largest_bits() < limit;
    }
  }

  // The largest of the bits of all entries, in which a sign counts most.
  typename Bits::Unsigned largest_bits() const
    requires(!std::is_same_v<Scalar, double>)
  {
    Unsigned largest = 0;
    Chain all = chains_[0];
    for (Index c = 1; c < kChains; ++c) all = chains_[c] > all ? chains_[c] : all;
    for (Index k = 0; k < kEntries; ++k) largest = std::max<Unsigned>(largest, all[k]);
    return largest;
  }

 private:
  using Unsigned = typename Bits::Unsigned;
  using Chain = std::conditional_t<std::is_same_v<Scalar, double>, DoubleVector,
                                   typename Bits::UnsignedBlock>;
  // A product with 0 takes four times as long as a comparison of whole numbers.
  static constexpr Index kChains = std::is_same_v<Scalar, double> ? 8 : 4;

  void look(const Scalar* from, Index c) {
    const Chain x = vector_at<Chain>(from);
    if constexpr (std::is_same_v<Scalar, double>) {
      // No AVX2 instruction takes the larger of two 64-bit integers. A sum of x·0 is 0 exactly when
      // every x is finite, and NaN otherwise.
      chains_[c] += x * 0.0;
    } else {
      chains_[c] = x > chains_[c] ? x : chains_[c];
    }
  }

  Chain chains_[kChains] = {};
};

}  // namespace attnscope
