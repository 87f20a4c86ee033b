// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <algorithm>

#include "matrix/rows.h"

namespace attnscope {
namespace {

template <class WideType>
double sum_between(const WideType* row, Index begin, Index end) {
  double total = 0.0;
  for (Index j = begin; j < end; ++j) total += static_cast<double>(row[j]);
  return total;
}

}  // namespace

template <class Scalar>
double local_global_ratio(const MatrixView<Scalar>& attention, const Support& support, Index window,
                          bool drop_first, RowScratch& scratch) {
  double local = 0.0;
  double global = 0.0;
  const Index first = drop_first ? 1 : 0;
  for_each_row(attention, support, scratch, [&](Index i, const Wide<Scalar>* row, Index end) {
    const Index from = std::clamp<Index>(i - window, first, std::max(first, end));
    const Index to = std::clamp<Index>(i + window + 1, from, std::max(from, end));
    local += sum_between(row, from, to);
    global += sum_between(row, first, from) + sum_between(row, to, end);
  });
  return local / global;
}

ATTNSCOPE_COMPILE(local_global_ratio);

}  // namespace attnscope
