// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <algorithm>
#include <numeric>

#include "matrix/rows.h"

namespace attnscope {

template <class Scalar>
double local_global_ratio(const MatrixView<Scalar>& attention, const Support& support, Index window,
                          bool drop_first, RowScratch& scratch) {
  double local = 0.0;
  double global = 0.0;
  const Index first = drop_first ? 1 : 0;
  for_each_row(attention, support, scratch, [&](Index i, const Wide<Scalar>* row, Index end) {
    const Index start = std::min(first, end);
    const Index place = support.position(i);
    const Index from = std::clamp<Index>(place - window, start, end);
    const Index to = std::clamp<Index>(place + window + 1, from, end);
    local += std::accumulate(row + from, row + to, 0.0);
    global +=
        std::accumulate(row + start, row + from, 0.0) + std::accumulate(row + to, row + end, 0.0);
  });
  return local / global;
}

ATTNSCOPE_COMPILE(local_global_ratio);

}  // namespace attnscope
