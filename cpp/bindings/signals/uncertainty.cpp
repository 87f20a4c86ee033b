// SPDX-License-Identifier: MIT
#include "kernels/signals/uncertainty.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple spectral(Argument attention, Argument lengths, Argument support,
                   const std::string& signal, bool drop_first, Index min_keys, bool root) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const SignalOptions options = signal_options(signal, drop_first, false, min_keys);
  return result_per_matrix<UncertaintyScratch>(
      batch, signal_axes(options, batch.queries, kUncertaintyFields), kNaN,
      [&](const auto& view, Index index, double* out, auto& scratch) {
        uncertainty(view, supports.of(index, view), options, root, out, scratch);
      });
}

}  // namespace

void bind_uncertainty(py::module_& module) {
  define(module, "spectral_uncertainty", &spectral, "attention", "lengths", "support", "signal",
         "drop_first", "min_keys", "root");
}

}  // namespace attnscope
