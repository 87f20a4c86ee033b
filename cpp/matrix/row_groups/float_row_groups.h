// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "matrix/float_rows.h"

// Sums along several rows side by side in float32, whose long chains of operations overlap: rows of
// a small map are too short to hide them alone. Only this folder includes it.
namespace attnscope {

// Rows between a read and what it asks for: as many as take longer to read than memory to answer,
// but no more than the second-level cache holds.
inline constexpr Index kRowsAhead = 32;
inline constexpr Index kLongRowsAhead = 8;
inline constexpr Index kLongRow = 4096;

// Adds the entries of kRows rows to kFloatWidth column sums in float32.
template <Index kRows>
[[gnu::always_inline]] inline void add_columns(const FloatVector (&x)[kRows], float* sums) {
  static_assert(kRows == 1 || kRows == 4);
  FloatVector rows = x[0];
  if constexpr (kRows == 4) rows = (x[0] + x[1]) + (x[2] + x[3]);
  put(sums, vector_at<FloatVector>(sums) + rows);
}

// Asks for the memory of rows that are read soon, at the place of an entry of each row of a group:
// the processor asks by itself for too few lines at a time where rows come from main memory.
template <Index kRows, class Entry>
[[gnu::always_inline]] inline void ask_ahead(const Entry* at, Index stride) {
  const Index ahead = stride < kLongRow ? kRowsAhead : kLongRowsAhead;
#pragma GCC unroll 4
  for (Index r = 0; r < kRows; ++r) __builtin_prefetch(at + (r + ahead) * stride, 0, 2);
}

// What a read of rows is asked for.
enum class RowsAnswer { entropies, sums, both };

// One read of kRows rows, `stride` entries apart, over their first `end` <= n entries: to `entropy`
// −Σ x log x of each, with the bits that float_row_entropy gives it, and the rows are added to the
// first `end` of n column sums in float32, as far as kAnswer asks for that. False where an entry
// has a sign: then what was written means nothing. n >= kFloatWidth.
template <Index kRows, RowsAnswer kAnswer, class Entry>
bool read_float_rows(const Entry* rows, Index stride, Index end, Index n,
                     [[maybe_unused]] double* entropy, [[maybe_unused]] float* sums) {
  constexpr bool kSums = kAnswer != RowsAnswer::entropies;
  constexpr bool kEntropies = kAnswer != RowsAnswer::sums;
  FloatVector even[kRows] = {};
  FloatVector odd[kRows] = {};
  IntVector signs{};
  Lanes totals[kRows] = {};
  const auto add = [&](const FloatVector(&x)[kRows], FloatVector(&chains)[kRows])
                       __attribute__((always_inline)) {
#pragma GCC unroll 4
                         for (Index r = 0; r < kRows; ++r) {
                           signs |= reinterpret_cast<IntVector>(x[r]);
                           if constexpr (kEntropies) chains[r] += x[r] * scaled_log2(x[r]);
                         }
                       };
  const auto add_whole = [&](Index j, FloatVector(&chains)[kRows]) __attribute__((always_inline)) {
    FloatVector x[kRows];
    ask_ahead<kRows>(rows + j, stride);
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) x[r] = load_floats(rows + r * stride + j);
    if constexpr (kSums) add_columns<kRows>(x, sums + j);
    add(x, chains);
  };
  // The entries from j on, fewer than a vector.
  const auto add_rest = [&](Index j, FloatVector(&chains)[kRows]) __attribute__((always_inline)) {
    // a vector that begins before j, so that no entry behind the row is read
    const Index first = std::min(j, n - kFloatWidth);
    FloatVector x[kRows];
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r)
      x[r] = lanes_between(load_floats(rows + r * stride + first), j - first, end - first);
    if constexpr (kSums) add_columns<kRows>(x, sums + first);
    add(x, chains);
  };
  const auto flush = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r) {
      totals[r] = plus_floats(totals[r], even[r] + odd[r]);
      even[r] = odd[r] = FloatVector{};
    }
  };
  Index j = 0;
  while (j + 2 * kChain * kFloatWidth <= end) {
    const Index stop = j + 2 * kChain * kFloatWidth;
    for (; j < stop; j += 2 * kFloatWidth) {
      add_whole(j, even);
      add_whole(j + kFloatWidth, odd);
    }
    flush();
  }
  for (; j + 2 * kFloatWidth <= end; j += 2 * kFloatWidth) {
    add_whole(j, even);
    add_whole(j + kFloatWidth, odd);
  }
  if (j + kFloatWidth <= end) {
    add_whole(j, even);
    j += kFloatWidth;
    if (j < end) add_rest(j, odd);
  } else if (j < end) {
    add_rest(j, even);
  }
  flush();
  if (lane_bits(signs) != 0) return false;
#pragma GCC unroll 4
  for (Index r = 0; kEntropies && r < kRows; ++r)
    entropy[r] = entropy_of_terms(sum_by_halves(totals[r]));
  return true;
}

// Whether one of `count` rows, `stride` entries apart, has an entry other than 0 behind its keys,
// up to n >= kFloatWidth. Keys of the first row end at `first_end`, those of each next one an entry
// later, none before 0 nor behind `end`, which is no further than a vector from any of them.
template <class Entry>
bool any_behind(const Entry* rows, Index stride, Index count, Index first_end, Index end, Index n) {
  constexpr Index kEntries = static_cast<Index>(sizeof(IntVector) / sizeof(Entry));
  constexpr Index kTogether = 4;
  constexpr std::int32_t kMagnitudes = sizeof(Entry) == 2 ? 0x7fff7fff : 0x7fffffff;
  IntVector bits{};
  const auto is_any = [&] { return lane_bits(IntVector{} != (bits & kMagnitudes)) != 0; };
  const Index begin = std::max<Index>(end - kFloatWidth, 0);
  IntVector behind;  // of lane k above 0 where it lies behind the row's keys
  for (Index k = 0; k < kFloatWidth; ++k)
    behind[k] = static_cast<std::int32_t>(begin + k - first_end + 1);
  for (Index r = 0; r < count; ++r, behind -= 1)
    bits |= reinterpret_cast<IntVector>(load_floats(rows + r * stride + begin)) & (behind > 0);
  if (end == n || is_any()) return is_any();  // maps that are not causal mostly end here
  const auto read_behind = [&]<Index kRows>(const Entry* from,
                                            std::integral_constant<Index, kRows>) {
    Index j = end;
    for (; j + kEntries <= n; j += kEntries) {
      ask_ahead<kRows>(from + j, stride);
#pragma GCC unroll 4
      for (Index r = 0; r < kRows; ++r) bits |= vector_at<IntVector>(from + r * stride + j);
    }
    for (; j < n; j += kFloatWidth) {
      const Index first = std::min(j, n - kFloatWidth);
#pragma GCC unroll 4
      for (Index r = 0; r < kRows; ++r) {
        const FloatVector x = load_floats(from + r * stride + first);
        bits |= reinterpret_cast<IntVector>(lanes_between(x, j - first, kFloatWidth));
      }
    }
  };
  Index r = 0;
  for (; r + kTogether <= count; r += kTogether)
    read_behind(rows + r * stride, std::integral_constant<Index, kTogether>{});
  for (; r < count; ++r) read_behind(rows + r * stride, std::integral_constant<Index, 1>{});
  return is_any();
}

}  // namespace attnscope
