// SPDX-License-Identifier: MIT
#include "matrix/row_groups/fast_near_and_far.h"

#include <algorithm>
#include <type_traits>

#include "matrix/row_groups/float_row_groups.h"

namespace attnscope {
namespace {

constexpr Index kRowsTogether = 4;

// Where the keys of rows that are read together end, and which vectors of them hold a key that is
// near for one of the rows: those from `from` to `to`.
struct KeyRanges {
  Index from;
  Index to;
  Index end;
  Index n;
};

// Sums of a map in float64 lanes, and the sign bits of its entries.
struct Totals {
  Lanes near{};
  Lanes far{};
  IntVector signs{};
};

template <Index kRows>
FloatVector sum_of_rows(const FloatVector (&x)[kRows]) {
  static_assert(kRows == 1 || kRows == 4);
  if constexpr (kRows == 4) return (x[0] + x[1]) + (x[2] + x[3]);
  return x[0];
}

// Adds kRows rows, the first of which stands at key `place`.
template <Index kRows, class Entry>
void add_rows(const Entry* rows, Index stride, Index place, Index window, const KeyRanges& keys,
              Totals& totals) {
  FloatVector near{}, far{};
  IntVector signs = totals.signs;
  IntVector lane;
  for (Index k = 0; k < kFloatWidth; ++k) lane[k] = static_cast<std::int32_t>(k);
  const auto flush = [&]() __attribute__((always_inline)) {
    totals.near = plus_floats(totals.near, near);
    totals.far = plus_floats(totals.far, far);
    near = far = FloatVector{};
  };
  const auto add_far = [&](const FloatVector(&x)[kRows], Index)
                           __attribute__((always_inline)) { far += sum_of_rows<kRows>(x); };
  const auto add_both = [&](const FloatVector(&x)[kRows], Index j) __attribute__((always_inline)) {
    FloatVector near_of_rows[kRows], far_of_rows[kRows];
    // how far key j lies behind the first key that is near, of each lane
    IntVector behind = lane + static_cast<std::int32_t>(j - (place - window));
#pragma GCC unroll 4
    for (Index r = 0; r < kRows; ++r, behind -= 1) {
      const IntVector is_near = (behind >= 0) & (behind <= static_cast<std::int32_t>(2 * window));
      near_of_rows[r] = reinterpret_cast<FloatVector>(reinterpret_cast<IntVector>(x[r]) & is_near);
      far_of_rows[r] = reinterpret_cast<FloatVector>(reinterpret_cast<IntVector>(x[r]) & ~is_near);
    }
    near += sum_of_rows<kRows>(near_of_rows);
    far += sum_of_rows<kRows>(far_of_rows);
  };
  Index added = 0;  // vectors since the last flush
  // add(entries of the rows from j on, j) for the vectors [begin, end) of them.
  const auto for_each = [&](Index begin, Index end, auto&& add) __attribute__((always_inline)) {
    FloatVector x[kRows];
    Index j = begin;
    for (; j < end; j += kFloatWidth) {
      Index first = j;
      if (j + kFloatWidth <= keys.end) {
        ask_ahead<kRows>(rows + j, stride);
#pragma GCC unroll 4
        for (Index r = 0; r < kRows; ++r) x[r] = load_floats(rows + r * stride + j);
      } else {
        // a vector that begins before j where it would end behind the row
        first = std::min(j, keys.n - kFloatWidth);
#pragma GCC unroll 4
        for (Index r = 0; r < kRows; ++r)
          x[r] = lanes_between(load_floats(rows + r * stride + first), j - first, keys.end - first);
      }
#pragma GCC unroll 4
      for (Index r = 0; r < kRows; ++r) signs |= reinterpret_cast<IntVector>(x[r]);
      add(x, first);
      if (++added == kChain) {
        flush();
        added = 0;
      }
    }
  };
  for_each(0, keys.from, add_far);
  for_each(keys.from, keys.to, add_both);
  for_each(keys.to, keys.end, add_far);
  flush();
  totals.signs = signs;
}

// Reads the map under one support; false where a causal one hides an entry other than 0.
template <class Scalar>
bool read_rows(const MatrixView<Scalar>& attention, const Support& support, Index window,
               Totals& totals) {
  const Index queries = attention.rows();
  const Index n = attention.cols();
  const Index stride = attention.outerStride();
  const auto whole_vectors = [](Index keys) {
    return (keys + kFloatWidth - 1) / kFloatWidth * kFloatWidth;
  };
  for (Index i = 0; i < queries;) {
    // the last keys of rows that are looked at together lie in one vector
    const Index place = i + support.shift;
    const Index stop = std::min(i + kFloatWidth - (place & (kFloatWidth - 1)), queries);
    const Scalar* rows = attention.data() + i * stride;
    KeyRanges keys{0, 0, n, n};
    if (support.kind == Support::Kind::causal) {
      // zeros add nothing, and a whole vector costs less than one that is masked
      keys.end = std::min(whole_vectors(support.end(stop - 1, n)), n);
      if (any_behind(rows, stride, stop - i, place + 1, keys.end, n)) return false;
    }
    keys.from = std::clamp<Index>(place - window, 0, keys.end) / kFloatWidth * kFloatWidth;
    keys.to = whole_vectors(std::clamp<Index>(place + stop - i + window, 0, keys.end));
    for (; i + kRowsTogether <= stop; i += kRowsTogether, rows += kRowsTogether * stride)
      add_rows<kRowsTogether>(rows, stride, i + support.shift, window, keys, totals);
    for (; i < stop; ++i, rows += stride)
      add_rows<1>(rows, stride, i + support.shift, window, keys, totals);
  }
  return true;
}

}  // namespace

template <class Scalar>
bool fast_near_and_far(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                       Index window, NearAndFarSum& sums) {
  if constexpr (std::is_same_v<Scalar, double>) {
    return false;
  } else {
    if (attention.innerStride() != 1 || attention.cols() < kFloatWidth ||
        support.kind == Support::Kind::mask || support.positions != nullptr)
      return false;
    if (find_support)
      support.kind = attention.cols() >= 2 ? Support::Kind::causal : Support::Kind::full;
    Totals totals;
    bool is_read = read_rows(attention, support, window, totals);
    if (!is_read && find_support) {
      support.kind = Support::Kind::full;
      totals = {};
      is_read = read_rows(attention, support, window, totals);
    }
    sums = {sum_by_halves(totals.near), sum_by_halves(totals.far)};
    // a sum of finite float32 numbers can overflow
    return is_read && lane_bits(totals.signs) == 0 && (sums.near + sums.far) * 0.0 == 0.0;
  }
}

ATTNSCOPE_COMPILE(fast_near_and_far);

}  // namespace attnscope
