// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

#include "matrix/widen.h"
#include "simd/lanes.h"

namespace attnscope {

// Sums of a row in four strands, which keep the adder busy and round the same everywhere.
template <class Term>
double strand_sum(Index count, Term&& term) {
  double sums[4] = {};
  Index j = 0;
  for (; j + 4 <= count; j += 4) {
    for (Index strand = 0; strand < 4; ++strand) sums[strand] += term(j + strand);
  }
  for (; j < count; ++j) sums[0] += term(j);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Standardises the entries of one row: mean 0 and mean square 1; false when they are all equal. A
// computed deviation of equal entries is not always 0, so the entries themselves are compared.
inline bool standardize_row(double* row, Index count) {
  bool varies = false;
  for (Index j = 1; j < count && !varies; ++j) varies = row[j] != row[0];
  if (!varies) return false;
  const auto size = static_cast<double>(count);
  // Means of subnormal numbers are no numbers and squares below 1e-308 vanish; powers of two are
  // exact.
  const double largest = largest_magnitude(row, count);
  if (largest < 0x1p-400 || largest > 0x1p400) {
    const double unit = largest < 1.0 ? 0x1p600 : 0x1p-600;
    for (Index j = 0; j < count; ++j) row[j] *= unit;
  }
  // Twice: where the entries differ in their last digits only, the first mean's rounding is not
  // small.
  for (int time = 0; time < 2; ++time) {
    const double mean = strand_sum(count, [&](Index j) { return row[j]; }) / size;
    for (Index j = 0; j < count; ++j) row[j] -= mean;
  }
  const double variance = strand_sum(count, [&](Index j) { return row[j] * row[j]; });
  const double scale = std::sqrt(size / variance);
  for (Index j = 0; j < count; ++j) row[j] *= scale;
  return true;
}

// The same of the first `count` entries of a row in every lane by itself; zeros in a lane whose
// entries are all equal. Returns the lanes that vary.
inline LaneMask standardize_lanes(Lanes* row, Index count) {
  // The sum of what `term` makes of every entry, which it may change.
  const auto sum_of = [=](auto&& term) {
    Lanes sums[4] = {};
    Index j = 0;
    for (; j + 4 <= count; j += 4) {
#pragma GCC unroll 4
      for (Index strand = 0; strand < 4; ++strand) sums[strand] += term(row[j + strand]);
    }
    for (; j < count; ++j) sums[j % 4] += term(row[j]);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  };
  if (count < 2) {
    std::fill_n(row, count, Lanes{});
    return LaneMask{};
  }
  Lanes least = row[0], most = row[0];
  Lanes sum = sum_of([&](Lanes x) {
    least = smaller(least, x);
    most = larger(most, x);
    return x;
  });
  const LaneMask varies = least != most;
  if (!any(varies)) {
    std::fill_n(row, count, Lanes{});
    return varies;
  }
  const Lanes largest = larger(magnitude(least), magnitude(most));
  const Lanes one = broadcast(1.0);
  const LaneMask tiny = largest < 0x1p-400;
  const LaneMask huge = largest > 0x1p400;
  if (any((tiny | huge) & varies)) {
    const Lanes unit = tiny ? broadcast(0x1p600) : (huge ? broadcast(0x1p-600) : one);
    sum = sum_of([=](Lanes& x) { return x *= unit; });
  }
  const double size = static_cast<double>(count);
  const Lanes first = sum / size;
  const Lanes second = sum_of([=](Lanes x) { return x - first; }) / size;
  const Lanes squares = sum_of([=](Lanes& x) {
    x = (x - first) - second;
    return x * x;
  });
  const Lanes scale = varies ? square_root(size / (varies ? squares : one)) : Lanes{};
  for (Index j = 0; j < count; ++j) row[j] *= scale;
  return varies;
}

// Standardises the rows of up to kPackWidth matrices of one size side by side, over the entries on
// and below the diagonal (`causal`) or all: row i to rows + place(i), zeros behind its own entries
// up to rows + place(i + 1). Returns how many rows of each matrix vary. `lines`: scratch of
// kPackWidth · n numbers.
template <class Scalar, class Place>
Lanes standardize_pack(std::span<const MatrixView<Scalar>> matrices, bool causal,
                       const Place& place, Lanes* rows, double* lines) {
  const Index n = matrices.front().rows();
  Lanes varying{};
  for (Index i = 0; i < n; ++i) {
    const Index count = causal ? i + 1 : n;
    Lanes* row = rows + place(i);
    interleave_row(matrices, i, count, lines, reinterpret_cast<double*>(row));
    std::fill(row + count, rows + place(i + 1), Lanes{});
    varying += standardize_lanes(row, count) ? broadcast(1.0) : Lanes{};
  }
  return varying;
}

}  // namespace attnscope
