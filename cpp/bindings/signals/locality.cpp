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
  return result_per_matrix<RowScratch>(
      batch, {}, kNaN, [&](const auto& view, Index index, double* out, auto& scratch) {
        const auto keys = static_cast<double>(view.cols());
        // A window beyond the map holds all of it, whatever number an integer ends at.
        const double width = window < 1.0 ? window * keys : std::min(window, keys);
        *out = local_global_ratio(view, supports.of(index, view), static_cast<Index>(width),
                                  drop_first, scratch);
      });
}

}  // namespace

void bind_locality(py::module_& module) {
  define(module, "local_global_ratio", &ratio, "attention", "lengths", "support", "window",
         "drop_first");
}

}  // namespace attnscope
