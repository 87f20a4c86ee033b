// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <type_traits>

#include "linalg/panels.h"
#include "matrix/rows.h"
#include "simd/number_lanes.h"

// Rows of causal scores in whole vectors. Only kernel sources include it.
namespace attnscope {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kMissing = std::numeric_limits<double>::quiet_NaN();
inline constexpr Support kCausal{.kind = Support::Kind::causal};

// `size` rounded up to whole vectors.
inline Index whole_vectors(Index size) { return (size + kPackWidth - 1) / kPackWidth * kPackWidth; }

// Whether all of a row's first entries are numbers or -infinity.
template <class WideType>
bool is_readable(const WideType* row, Index count) {
  constexpr auto kTop = std::numeric_limits<WideType>::infinity();
  return std::all_of(row, row + std::max<Index>(count, 0), [](WideType x) { return x < kTop; });
}

// Looks for NaN and +infinity among entries: either shows in their sum, which -infinity leaves
// below infinity.
template <class WideType>
class SumOfEntries {
  using Floats = typename VectorOf<WideType>::Floats;
  using Numbers = typename VectorOf<WideType>::Numbers;
  static constexpr Index kWidth = static_cast<Index>(kLanes<WideType>);

 public:
  // The first `count` entries of a row of `n`.
  void add(const WideType* row, Index count, Index n) {
    Floats even = sums_, odd{};  // side by side, because an addition waits for the one before it
    Index j = 0;
    for (; j + 2 * kWidth <= count; j += 2 * kWidth) {
      even += vector_at<Floats>(row + j);
      odd += vector_at<Floats>(row + j + kWidth);
    }
    for (; j < count && j + kWidth <= n; j += kWidth) {
      const Numbers inside =
          reinterpret_cast<Numbers>(vector_at<Floats>(row + j)) & first(count - j);
      even += reinterpret_cast<Floats>(inside);
    }
    for (; j < count; ++j) even[0] += row[j];
    sums_ = even + odd;
  }
  // Whether all of them are numbers or -infinity; where not, numbers may have been too large for
  // their sum.
  bool is_readable() const {
    const auto below = reinterpret_cast<Numbers>(sums_ < std::numeric_limits<WideType>::infinity());
    return lane_bits(below) == (1u << kWidth) - 1;
  }

 private:
  static Numbers first(Index count) {
    Numbers lane;
    for (Index k = 0; k < kWidth; ++k)
      lane[k] = static_cast<std::remove_reference_t<decltype(lane[0])>>(k);
    return lane < static_cast<std::remove_reference_t<decltype(lane[0])>>(count) - Numbers{};
  }
  Floats sums_{};
};

// Where lane k takes from in one step of a loop over halves of lanes. The compiler makes one vector
// of it, which it does not of lanes that are set one by one.
using Places = std::array<long, static_cast<std::size_t>(kPackWidth)>;
template <class PlaceOf>
constexpr Places places(PlaceOf place_of) {
  Places result{};
  for (Index k = 0; k < kPackWidth; ++k) result[k] = place_of(k);
  return result;
}
inline Lanes picked(Lanes a, Lanes b, const Places& places) {
  LaneMask lanes;
  std::memcpy(&lanes, places.data(), sizeof(lanes));
  return picked(a, b, lanes);
}

template <Index kStep = kPackWidth / 2>
double largest(Lanes lanes) {
  static constexpr Places kOther = places([](Index k) { return k ^ kStep; });
  lanes = larger(lanes, picked(lanes, lanes, kOther));
  if constexpr (kStep > 1) return largest<kStep / 2>(lanes);
  return lanes[0];
}

// Lane k holds the sum of the lanes k to the last, which zeros in front of it do not change in any
// bit: with each step it takes the sum of the upper half of its block of 2, 4 and 8 where it stands
// in the lower.
template <Index kStep = 1>
Lanes sums_from_behind(Lanes lanes) {
  static constexpr Places kUpper =
      places([](Index k) { return (k & kStep) == 0 ? (k & -kStep) + kStep : kPackWidth; });
  lanes += picked(lanes, Lanes{}, kUpper);
  if constexpr (2 * kStep < kPackWidth) return sums_from_behind<2 * kStep>(lanes);
  return lanes;
}

}  // namespace attnscope
