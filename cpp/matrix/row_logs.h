// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "matrix/rows.h"
#include "simd/logarithm.h"

// Sums of entries times logarithms along a row. Only kernel sources include it.
namespace attnscope {

// visit(lanes of the row at j, those at j + kPackWidth, j) for j = 0, 2·kPackWidth, … up to end <=
// n, with zeros from end on; nothing where end <= 0. `n` entries may be read.
template <class WideType, class Visit>
void for_each_two_lanes(const WideType* row, Index end, Index n, Visit&& visit) {
  Index j = 0;
  for (; j + 2 * kPackWidth <= end; j += 2 * kPackWidth) {
    visit(load(row + j), load(row + j + kPackWidth), j);
  }
  if (j >= end) return;
  const Index left = end - j;
  const Lanes first = left >= kPackWidth ? load(row + j) : load_head(row + j, left, n - j);
  Lanes second{};
  if (left > kPackWidth) {
    second = load_head(row + j + kPackWidth, left - kPackWidth, n - j - kPackWidth);
  }
  visit(first, second, j);
}

// −Σ x log x; NaN where an entry is negative. Unless `mass` is null the row is added to it, of
// which whole vectors are touched.
template <class WideType>
double row_entropy(const WideType* row, Index end, Index n, double* mass) {
  Lanes even{};
  Lanes odd{};
  LaneMask signs{};  // the sign bit of every lane that met one
  const auto add = [&](Lanes x, Index j, Lanes& sum) {
    if (mass != nullptr) store(mass + j, load(mass + j) + x);
    signs |= reinterpret_cast<LaneMask>(x);
    sum = multiply_add(x, bounded_log(x), sum);
  };
  Index j = 0;
  for (; j + 2 * kPackWidth <= end; j += 2 * kPackWidth) {
    add(load(row + j), j, even);
    add(load(row + j + kPackWidth), j + kPackWidth, odd);
  }
  // A vector of zeros would add nothing, and the rows of a short map end with many.
  if (j < end) {
    const bool is_whole = j + kPackWidth <= end;
    add(is_whole ? load(row + j) : load_head(row + j, end - j, n - j), j, even);
    j += kPackWidth;
  }
  if (j < end) add(load_head(row + j, end - j, n - j), j, odd);
  // −0 has a sign too, and is no negative entry.
  if (lane_bits(reinterpret_cast<LongVector>(signs)) != 0 &&
      std::any_of(row, row + end, [](WideType x) { return x < WideType(0); })) {
    return kNaN;
  }
  return 0.0 - sum_by_halves(even + odd);
}

// Σ x·logs, summed as row_entropy sums: where `logs` are the logarithms of the row itself the two
// are opposite to the last bit. Whole vectors of `logs` are read.
template <class WideType>
double row_cross(const WideType* row, Index end, Index n, const double* logs) {
  Lanes even{};
  Lanes odd{};
  for_each_two_lanes(row, end, n, [&](Lanes a, Lanes b, Index j) {
    even = multiply_add(a, load(logs + j), even);
    odd = multiply_add(b, load(logs + j + kPackWidth), odd);
  });
  return sum_by_halves(even + odd);
}

}  // namespace attnscope
