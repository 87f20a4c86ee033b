// SPDX-License-Identifier: MIT
#include "kernels/graphs/fiedler.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// λ2 and the number of matrices that are not finite; `fast`, also the number that were measured
// exactly because float32 does not hold its bound there.
py::tuple value(Argument attention, Argument lengths, const std::string& symmetrize,
                std::optional<double> threshold, bool normalized, const std::string& precision) {
  const Batch batch = make_batch(attention, lengths);
  const GraphOptions options{symmetrize_from(symmetrize), threshold, normalized};
  const Precision level = precision_from(precision);
  const Result<double> result = make_result(batch.sizes, {}, kNaN);
  std::atomic<Index> exactly{0};
  const Index non_finite = per_pack<FiedlerWorkspace>(
      batch, fiedler_pack_width(batch.shortest()), [&](auto views, auto indices, auto& workspace) {
        double values[kWidestPack];
        workspace.exactly = 0;
        fiedler_values(views, options, level, values, workspace);
        for (std::size_t k = 0; k < indices.size(); ++k) result.data[indices[k]] = values[k];
        exactly.fetch_add(workspace.exactly, std::memory_order_relaxed);
      });
  if (level == Precision::fast) return py::make_tuple(result.tensor, non_finite, exactly.load());
  return py::make_tuple(result.tensor, non_finite);
}

py::tuple vector(Argument attention, Argument lengths, const std::string& symmetrize,
                 std::optional<double> threshold, bool normalized) {
  const Batch batch = make_batch(attention, lengths);
  const GraphOptions options{symmetrize_from(symmetrize), threshold, normalized};
  return result_per_matrix<FiedlerWorkspace>(
      batch, {batch.n}, kNaN, [&](const auto& view, Index, double* out, auto& workspace) {
        fiedler_vector(view, options, out, workspace);
      });
}

}  // namespace

void bind_fiedler(py::module_& module) {
  module.def("fiedler_value", &value, py::arg("attention"), py::arg("lengths"),
             py::arg("symmetrize"), py::arg("threshold"), py::arg("normalized"),
             precision_argument());
  define(module, "fiedler_vector", &vector, "attention", "lengths", "symmetrize", "threshold",
         "normalized");
}

}  // namespace attnscope
