// SPDX-License-Identifier: MIT
#include "kernels/spectra/singular_values.h"

#include <atomic>

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// The values and the number of matrices that are not finite; with precision "fast" behind them how
// many maps were measured exactly.
py::tuple values(Argument attention, Argument lengths, const std::string& precision) {
  const Batch batch = make_rectangles(attention, lengths);
  const Index width = std::min(batch.queries, batch.n);
  const Precision level = precision_from(precision);
  const Result<double> result = make_result(batch.sizes, {width}, kNaN);
  std::atomic<Index> measured_exactly{0};
  const Index non_finite = per_pack<SingularValuesWorkspace>(
      batch, shared_pack_width(batch, singular_values_width(level)),
      [&]<class Views>(Views views, std::span<const Index> indices, auto& workspace) {
        std::vector<double*> out(indices.size());
        for (std::size_t k = 0; k < indices.size(); ++k) out[k] = result.data + indices[k] * width;
        const Index again = singular_values(views, std::span<double* const>(out), workspace, level);
        measured_exactly.fetch_add(again, std::memory_order_relaxed);
      });
  if (level == Precision::fast) {
    return py::make_tuple(result.tensor, non_finite, measured_exactly.load());
  }
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_singular_values(py::module_& module) {
  module.def("singular_values", &values, py::arg("attention"), py::arg("lengths"),
             precision_argument());
}

}  // namespace attnscope
