// SPDX-License-Identifier: MIT
#include "kernels/answers/lookback.h"

#include <algorithm>

#include "matrix/matrix_view.h"
#include "matrix/partial_map.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

template <class WideType>
double sum_of(const WideType* row, Index begin, Index end, Index n) {
  Lanes sums{};
  for_each_lane(row, begin, end, n, [&](Lanes lanes, Index) { sums += lanes; });
  double total = 0.0;
  for (Index k = 0; k < kPackWidth; ++k) total += sums[k];
  return total;
}

// Visible keys of query `i` in [0, end).
Index visible_before(const Support& support, Index i, Index end) {
  if (support.kind != Support::Kind::mask) return end;
  Index count = 0;
  for (Index j = 0; j < end; ++j) count += support.visible(i, j) ? 1 : 0;
  return count;
}

}  // namespace

template <class Scalar>
bool lookback(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
              Support& support, const LookbackAnswer& answer, double* ratio, double& value,
              RowScratch& scratch) {
  const Index n = attention.rows();
  if (!read_partial_map(attention, first_row, find_support, support, scratch)) return false;
  std::fill(ratio, ratio + (n - first_row), kNaN);
  RowReader<Scalar> reader(attention, support, scratch);
  const Index shift = answer.predicting ? 1 : 0;
  double total = 0.0;
  Index defined = 0;
  for (Index i = std::max(first_row, answer.start - shift); i < answer.stop - shift; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    const Index end = reader.end(i);
    const Index cut = std::min(answer.context, end);
    const Index context = visible_before(support, i, cut);
    const Index others = visible_before(support, i, end) - context;
    if (context == 0 || others == 0) continue;
    const double to_context = sum_of(row, 0, cut, n) / static_cast<double>(context);
    const double to_others = sum_of(row, cut, end, n) / static_cast<double>(others);
    if (to_context + to_others == 0.0) continue;
    ratio[i - first_row] = to_context / (to_context + to_others);
    total += ratio[i - first_row];
    ++defined;
  }
  value = defined == 0 ? kNaN : total / static_cast<double>(defined);
  return true;
}

ATTNSCOPE_COMPILE(lookback);

}  // namespace attnscope
