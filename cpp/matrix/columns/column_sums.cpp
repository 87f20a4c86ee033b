// SPDX-License-Identifier: MIT
#include "matrix/columns/column_sums.h"

#include <algorithm>

#include "matrix/columns/sum_lanes.h"
#include "matrix/rows.h"
#include "simd/hidden_entries.h"

namespace attnscope {
namespace {

// Rows that are added before it is asked what they say of the map.
constexpr Index kBytesInBand = Index{1} << 15;

// Short rows are asked for so far ahead of what is added. Strips of longer ones are no run of
// memory that a processor goes on with by itself, and are asked for a strip ahead.
constexpr Index kBytesAhead = Index{1} << 11;
constexpr Index kShortRow = kPackWidth == 8 ? Index{1} << 10 : Index{1} << 9;  // bytes

// What a read of some rows says of their map.
enum class Reading { done, not_causal, out_of_range };

// What was seen of a map's entries: two chains, because each waits for its last.
template <class Lane>
struct Looks {
  typename Lane::Seen chains[2];

  bool hold() const { return Lane::Seen::holds(chains[0]) && Lane::Seen::holds(chains[1]); }
};

// Adds rows of kUnits units of columns to their sums; what is read next lies `ahead` entries on.
template <class Lane, Index kUnits, class Scalar>
void add_strip(const Scalar* columns, Index row_stride, Index rows, Index ahead, double* sums,
               Looks<Lane>& looks) {
  constexpr auto kLine = Ahead::kLine / static_cast<Index>(sizeof(Scalar));
  constexpr bool kAsks = sizeof(Scalar) < sizeof(double);
  const auto factor = Lane::factor();
  Looks<Lane> looks_of_strip = looks;
  typename Lane::Sum total[kUnits];
#pragma GCC unroll 16
  for (Index u = 0; u < kUnits; ++u) total[u] = Lane::begin(sums + u * Lane::kColumns);
  for (Index i = 0; i < rows; ++i) {
    const Scalar* row = columns + i * row_stride;
#pragma GCC unroll 16
    for (Index u = 0; u < kUnits; ++u) {
      const Scalar* from = row + u * Lane::kColumns;
      if (kAsks && u * Lane::kColumns % kLine == 0) __builtin_prefetch(from + ahead);
      Lane::Seen::look(from, looks_of_strip.chains[u % 2]);
      Lane::add(from, factor, total[u]);
    }
  }
#pragma GCC unroll 16
  for (Index u = 0; u < kUnits; ++u) Lane::end(total[u], sums + u * Lane::kColumns);
  looks = looks_of_strip;
}

// The same of up to kCount units.
template <class Lane, Index kCount, class Scalar>
void add_units(Index units, const Scalar* columns, Index row_stride, Index rows, Index ahead,
               double* sums, Looks<Lane>& looks) {
  if (units == kCount)
    return add_strip<Lane, kCount>(columns, row_stride, rows, ahead, sums, looks);
  if constexpr (kCount > 1)
    add_units<Lane, kCount - 1>(units, columns, row_stride, rows, ahead, sums, looks);
}

// Adds the columns [0, end) of rows, in units of Lane, to their sums; what is hidden of the last
// unit is 0. Returns how many columns are in whole units.
template <class Lane, class Scalar>
Index add_whole_units(const Scalar* data, Index row_stride, Index rows, Index columns, Index end,
                      double* sums, Looks<Lane>& looks) {
  const Index in_units = columns / Lane::kColumns * Lane::kColumns;
  Index units = (std::min(end, in_units) + Lane::kColumns - 1) / Lane::kColumns;
  constexpr Index kStep = Lane::kMost * Lane::kColumns;
  constexpr auto kSize = static_cast<Index>(sizeof(Scalar));
  const bool is_short = row_stride * kSize <= kShortRow;
  Index below = rows * row_stride;  // from a strip to the first strip of the rows that follow
  for (; units > Lane::kMost; units -= Lane::kMost, data += kStep, sums += kStep, below -= kStep)
    add_strip<Lane, Lane::kMost>(data, row_stride, rows, is_short ? kBytesAhead / kSize : kStep,
                                 sums, looks);
  if (is_short) below = kBytesAhead / kSize;
  if (units > 0) add_units<Lane, Lane::kMost>(units, data, row_stride, rows, below, sums, looks);
  return in_units;
}

// The same of all columns [0, end), of which the last that fill no vector go to `rest`, beside
// those before them.
template <class Lane, class Scalar>
void add_rows(const Scalar* data, Index row_stride, Index rows, Index columns, Index end,
              double* sums, double* rest, Looks<Lane>& looks) {
  Index in_units = add_whole_units<Lane>(data, row_stride, rows, columns, end, sums, looks);
  if (end <= in_units) return;
  using Plain = PlainSums<Scalar>;
  Looks<Plain> ignored;
  in_units += add_whole_units<Plain>(data + in_units, row_stride, rows, columns - in_units,
                                     end - in_units, sums + in_units, ignored);
  if (end > in_units)
    add_strip<Plain, 1>(data + columns - kPackWidth, row_stride, rows, 0, rest, ignored);
}

// What is hidden in the rows [first, last) of a map, beside what was seen before of others.
template <class Scalar>
class HiddenRows {
 public:
  HiddenRows(const MatrixView<Scalar>& rows, Index heads, Index shift)
      : rows_(rows), heads_(heads), shift_(shift) {}

  void add(Index first, Index last) {
    const Index columns = rows_.cols();
    const Index stride = rows_.outerStride();
    const Scalar* row = rows_.data() + first * stride;
    const Index begin = (first + shift_ + 1) * heads_;
    if (columns >= Wide::kEntries) {
      wide_.add_ends(row, stride, columns, begin, heads_, last - first);
    } else if (columns >= Narrow::kEntries) {
      narrow_.add_ends(row, stride, columns, begin, heads_, last - first);
    } else {
      for (Index i = first; i < last; ++i, row += stride) {
        const Index from = std::clamp<Index>((i + shift_ + 1) * heads_, 0, columns);
        any_ = any_ || any_nonzero(row + from, columns - from, 1);
      }
    }
  }

  bool any() const {
    if (rows_.cols() >= Wide::kEntries) return wide_.any();
    return any_ || narrow_.any();
  }

 private:
  using Wide = HiddenEntries<Scalar, kVectorBytes>;
  using Narrow = HiddenEntries<Scalar, 16>;
  MatrixView<Scalar> rows_;
  Index heads_;
  Index shift_;
  Wide wide_;
  Narrow narrow_;
  bool any_ = false;
};

// All rows, or, with `causal`, those before it is seen that the map is not.
template <class Lane, class Scalar>
Reading add_all_rows(const MatrixView<Scalar>& rows, Index heads, Index shift, bool causal,
                     double* sums) {
  const Index columns = rows.cols();
  const Index count = rows.rows();
  const Index stride = rows.outerStride();
  double rest[kPackWidth] = {};
  std::fill(sums, sums + columns, 0.0);
  HiddenRows<Scalar> hidden(rows, heads, shift);
  Looks<Lane> looks;
  const Index bytes = columns * static_cast<Index>(sizeof(Scalar));
  const Index band = std::min(std::max<Index>(kBytesInBand / bytes / 8 * 8, 8), Lane::kMostRows);
  for (Index first = 0; first < count; first += band) {
    const Index last = std::min(first + band, count);
    const Index step = causal ? Lane::kRowsInBand : last - first;
    for (Index i = first; i < last; i += step) {
      const Index after = std::min(i + step, last);
      const Index end = causal ? std::clamp<Index>((after + shift) * heads, 0, columns) : columns;
      add_rows<Lane>(rows.data() + i * stride, stride, after - i, columns, end, sums, rest, looks);
      if (causal) hidden.add(i, after);
    }
    if (!looks.hold()) return Reading::out_of_range;
    if (causal && hidden.any()) return Reading::not_causal;
  }
  const Index in_units = columns / Lane::kColumns * Lane::kColumns;
  for (Index k = 0; k < in_units; k += Lane::kColumns) Lane::sort(sums + k);
  // What is left of them, in vectors.
  const Index in_vectors = in_units + (columns - in_units) / kPackWidth * kPackWidth;
  for (Index k = in_vectors; k < columns; ++k) sums[k] = rest[k - columns + kPackWidth];
  return Reading::done;
}

// The same with the fastest sums that hold the entries.
template <class Scalar>
bool add_all_rows(const MatrixView<Scalar>& rows, Index heads, Index shift, bool causal,
                  double* sums) {
  using Lane = FastestSums<Scalar>;
  Reading reading = Reading::out_of_range;
  if (rows.cols() >= Lane::kColumns) reading = add_all_rows<Lane>(rows, heads, shift, causal, sums);
  if (reading == Reading::out_of_range)
    reading = add_all_rows<PlainSums<Scalar>>(rows, heads, shift, causal, sums);
  return reading == Reading::done;
}

}  // namespace

template <class Scalar>
bool has_summable_columns(const MatrixView<Scalar>& rows) {
  return rows.innerStride() == 1 && rows.cols() >= kPackWidth;
}

template <class Scalar>
bool sum_columns(const MatrixView<Scalar>& rows, Index heads, Index shift, bool find_causal,
                 double* sums) {
  // Row 0 alone shows of most maps that are not causal that they are not.
  const Index behind = std::clamp<Index>((shift + 1) * heads, 0, rows.cols());
  const bool may_be_causal =
      find_causal && !any_nonzero(rows.data() + behind, rows.cols() - behind, 1);
  if (may_be_causal && add_all_rows(rows, heads, shift, true, sums)) return true;
  add_all_rows(rows, heads, shift, false, sums);
  return false;
}

bool are_finite(const double* sums, Index count, Index stride) {
  // several chains, because each product waits for its last
  constexpr Index kChains = 4;
  Lanes zeros[kChains] = {};
  Index j = 0;
  for (; stride == 1 && j + kChains * kPackWidth <= count; j += kChains * kPackWidth) {
#pragma GCC unroll 4
    for (Index c = 0; c < kChains; ++c) zeros[c] += load(sums + j + c * kPackWidth) * 0.0;
  }
  for (; stride == 1 && j + kPackWidth <= count; j += kPackWidth) zeros[0] += load(sums + j) * 0.0;
  double zero = sum_by_halves((zeros[0] + zeros[1]) + (zeros[2] + zeros[3]));
  for (; j < count; ++j) zero += sums[j * stride] * 0.0;
  return zero == 0.0;
}

ATTNSCOPE_COMPILE(has_summable_columns);
ATTNSCOPE_COMPILE(sum_columns);

}  // namespace attnscope
