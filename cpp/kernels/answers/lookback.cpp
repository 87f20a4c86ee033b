// SPDX-License-Identifier: MIT
#include "kernels/answers/lookback.h"

#include <algorithm>
#include <cmath>

#include "matrix/matrix_view.h"
#include "matrix/partial_map.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// Rows that are looked at together: few enough to stay in the cache until their means are taken.
constexpr Index kBand = 16;

// Halves added until one is left: three additions that wait for each other instead of seven.
double add_lanes(Lanes lanes) {
  double entries[kPackWidth];
  store(entries, lanes);
  for (Index half = kPackWidth / 2; half > 0; half /= 2) {
    for (Index k = 0; k < half; ++k) entries[k] += entries[k + half];
  }
  return entries[0];
}

// Four strands, so that no addition waits for the one before.
template <class WideType>
double sum_of(const WideType* row, Index begin, Index end, Index n) {
  Lanes strands[4] = {};
  Index j = begin;
  for (; j + 4 * kPackWidth <= end; j += 4 * kPackWidth) {
    for (Index s = 0; s < 4; ++s) strands[s] += load(row + j + s * kPackWidth);
  }
  for_each_lane(row, j, end, n, [&](Lanes lanes, Index) { strands[0] += lanes; });
  return add_lanes((strands[0] + strands[1]) + (strands[2] + strands[3]));
}

// Visible keys of query `i` in [0, end).
Index visible_before(const Support& support, Index i, Index end) {
  if (support.kind != Support::Kind::mask) return end;
  Index count = 0;
  for (Index j = 0; j < end; ++j) count += support.visible(i, j) ? 1 : 0;
  return count;
}

// The ratio of one query.
template <class Scalar>
double ratio_of(RowReader<Scalar>& reader, const Support& support, Index i, Index context,
                Index n) {
  const Wide<Scalar>* row = reader.row(i);
  const Index end = reader.end(i);
  const Index cut = std::min(context, end);
  const Index before = visible_before(support, i, cut);
  const Index behind = visible_before(support, i, end) - before;
  if (before == 0 || behind == 0) return kNaN;
  const double to_context = sum_of(row, 0, cut, n) / static_cast<double>(before);
  const double to_others = sum_of(row, cut, end, n) / static_cast<double>(behind);
  return to_context + to_others == 0.0 ? kNaN : to_context / (to_context + to_others);
}

}  // namespace

template <class Scalar>
bool lookback(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
              Support& support, const LookbackAnswer& answer, double* ratio, double& value,
              RowScratch& scratch) {
  const Index n = attention.rows();
  const Index shift = answer.predicting ? 1 : 0;
  const Index start = std::max(first_row, answer.start - shift);
  const Index stop = answer.stop - shift;
  const auto write = [&](Index begin, Index end) {
    RowReader<Scalar> reader(attention, support, scratch);
    for (Index i = begin; i < end; ++i) {
      ratio[i - first_row] = ratio_of(reader, support, i, answer.context, n);
    }
  };
  std::fill(ratio, ratio + (n - first_row), kNaN);
  if (lines_are_rows(attention)) {
    // Rows are used while they lie in the cache, the support being causal as far as is known.
    MatrixReading reading{true, find_support && n >= 2};
    if (find_support) support = {reading.causal ? Support::Kind::causal : Support::Kind::full};
    Index next = start;
    for (Index band = first_row; band < n; band += kBand) {
      const Index end = std::min(n, band + kBand);
      read_lines(attention, band, end, reading);
      if (!reading.finite) {
        std::fill(ratio, ratio + (n - first_row), kNaN);
        return false;
      }
      if (find_support && !reading.causal && support.kind == Support::Kind::causal) {
        support = {Support::Kind::full};
        next = start;
      }
      write(next, std::min(end, stop));
      next = std::max(next, std::min(end, stop));
    }
  } else {
    if (!read_partial_map(attention, first_row, find_support, support, scratch)) return false;
    write(start, stop);
  }
  double total = 0.0;
  Index defined = 0;
  for (Index i = start; i < stop; ++i) {
    if (std::isnan(ratio[i - first_row])) continue;
    total += ratio[i - first_row];
    ++defined;
  }
  value = defined == 0 ? kNaN : total / static_cast<double>(defined);
  return true;
}

ATTNSCOPE_COMPILE(lookback);

}  // namespace attnscope
