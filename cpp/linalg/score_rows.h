// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <limits>

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
  using Floats = typename VectorOf<WideType>::Floats;
  constexpr Index kWidth = static_cast<Index>(kLanes<WideType>);
  constexpr auto kTop = std::numeric_limits<WideType>::infinity();
  if (count < kWidth) return std::all_of(row, row + std::max<Index>(count, 0), [](WideType x) { return x < kTop; });
  auto good = vector_at<Floats>(row + count - kWidth) < kTop;
  for (Index j = 0; j + kWidth < count; j += kWidth) good &= vector_at<Floats>(row + j) < kTop;
  return lane_bits(good) == (1u << kWidth) - 1;
}

// Asks for the first `count` entries of row `i`, where there is one, ahead of their use: rows that end at the
// diagonal are no stream that a processor foresees.
template <class Scalar>
void prefetch_row(const MatrixView<Scalar>& matrix, Index i, Index count) {
  if (i >= matrix.rows() || matrix.innerStride() != 1) return;
  constexpr Index kLine = 64 / sizeof(Scalar);
  const Scalar* row = matrix.data() + i * matrix.outerStride();
  for (Index j = 0; j < count; j += kLine) __builtin_prefetch(row + j);
}

inline double largest(Lanes lanes) {
  LaneMask place;
  for (Index k = 0; k < kPackWidth; ++k) place[k] = k;
#pragma GCC unroll 3
  for (Index step = kPackWidth / 2; step > 0; step /= 2) {
    lanes = larger(lanes, picked(lanes, lanes, place ^ (step - LaneMask{})));
  }
  return lanes[0];
}

// Lane k holds the sum of the lanes k to the last, which zeros in front of it do not change in any bit: with each
// step it takes the sum of the upper half of its block of 2, 4 and 8 where it stands in the lower.
inline Lanes sums_from_behind(Lanes lanes) {
#pragma GCC unroll 3
  for (Index step = 1; step < kPackWidth; step *= 2) {
    LaneMask place;
    for (Index k = 0; k < kPackWidth; ++k) place[k] = (k & step) == 0 ? (k & -step) + step : kPackWidth;
    lanes += picked(lanes, Lanes{}, place);
  }
  return lanes;
}

}  // namespace attnscope
