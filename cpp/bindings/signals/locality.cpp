// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <algorithm>

#include "bindings/batched.h"

namespace attnscope {
namespace {

// A `window` below 1 is a fraction of each map's own number of keys.
py::tuple ratio(Argument attention, Argument lengths, Argument support, double window,
                bool drop_first) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> result = make_result(batch.sizes, {}, kNaN);
  const Index non_finite = per_matrix_checked_by_kernel<RowScratch>(
      batch,
      [&](const auto& view, Index index, auto& scratch) {
        const auto keys = static_cast<double>(view.cols());
        // A window beyond the map holds all of it, whatever number an integer ends at.
        const double width = window < 1.0 ? window * keys : std::min(window, keys);
        Support own = supports.given(index);
        return local_global_ratio(view, supports.automatic, own, static_cast<Index>(width),
                                  drop_first, result.data[index], scratch);
      },
      block_size(batch, 1, kBlockEntriesOfSums));
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_locality(py::module_& module) {
  define(module, "local_global_ratio", &ratio, "attention", "lengths", "support", "window",
         "drop_first");
}

}  // namespace attnscope
