// SPDX-License-Identifier: MIT
#include "kernels/signals/wavelet.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple transform(Argument attention, Argument lengths, Argument support,
                    const std::string& signal, bool drop_first, bool detrend, Index min_keys,
                    Index levels, Index resample) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const WaveletOptions options{signal_options(signal, drop_first, detrend, min_keys), levels,
                               resample};
  const Index fields = wavelet_fields(levels);
  const Index numbers = signal_count(options.signal, batch.queries) * fields;
  const Result<double> result =
      make_result(batch.sizes, signal_axes(options.signal, batch.queries, fields), kNaN);
  const Result<double> profile = make_result(batch.sizes, {levels + 1, resample}, kNaN);
  const Index non_finite =
      per_matrix<WaveletScratch>(batch, [&](const auto& view, Index index, auto& scratch) {
        wavelet_transform(view, supports.of(index, view), options, result.data + index * numbers,
                          profile.data + index * (levels + 1) * resample, scratch);
      });
  return py::make_tuple(result.tensor, profile.tensor, non_finite);
}

// `scales`: a contiguous float64 tensor.
py::tuple scalogram(Argument attention, Argument lengths, Argument support,
                    const std::string& signal, bool drop_first, bool detrend, Index min_keys,
                    Argument scales, double omega) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const SignalOptions options = signal_options(signal, drop_first, detrend, min_keys);
  const Thresholds list = make_thresholds(batch, scales);
  const auto draw = [&](const auto& view, Index index, double* out, WaveletScratch& scratch) {
    const Index n = view.cols();
    std::vector<double> coefficients(list.size * n, kNaN);
    morlet_scalogram(view, supports.of(index, view), options, list.of(0), list.size, omega,
                     coefficients.data(), scratch);
    for (Index s = 0; s < list.size; ++s)
      std::copy_n(coefficients.begin() + s * n, n, out + s * batch.n);
  };
  return result_per_matrix<WaveletScratch>(batch, {list.size, batch.n}, kNaN, draw, 1);
}

}  // namespace

void bind_wavelet(py::module_& module) {
  define(module, "wavelet_levels", &wavelet_levels, "n");
  define(module, "wavelet_transform", &transform, "attention", "lengths", "support", "signal",
         "drop_first", "detrend", "min_keys", "levels", "resample");
  define(module, "morlet_scalogram", &scalogram, "attention", "lengths", "support", "signal",
         "drop_first", "detrend", "min_keys", "scales", "omega");
}

}  // namespace attnscope
