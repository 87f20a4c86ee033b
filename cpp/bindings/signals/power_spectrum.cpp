// SPDX-License-Identifier: MIT
#include "kernels/signals/power_spectrum.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple spectrum(Argument attention, Argument lengths, Argument support,
                   const std::string& signal, bool drop_first, bool detrend, Index min_keys,
                   bool hann, double padding, Index bands) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const SpectrumOptions options{signal_options(signal, drop_first, detrend, min_keys), hann,
                                padding, bands};
  return result_per_matrix<SpectrumScratch>(
      batch, signal_axes(options.signal, batch.queries, kSpectrumFields + bands), kNaN,
      [&](const auto& view, Index index, double* out, auto& scratch) {
        power_spectrum(view, supports.of(index, view), options, out, scratch);
      });
}

}  // namespace

void bind_power_spectrum(py::module_& module) {
  define(module, "power_spectrum", &spectrum, "attention", "lengths", "support", "signal",
         "drop_first", "detrend", "min_keys", "hann", "padding", "bands");
}

}  // namespace attnscope
