// SPDX-License-Identifier: MIT
#include "kernels/spectra/singular_values.h"

#include "bindings/batched.h"

namespace attnscope {
namespace {

py::tuple values(Argument attention, Argument lengths) {
  const Batch batch = make_rectangles(attention, lengths);
  const Index width = std::min(batch.queries, batch.n);
  const Result<double> result = make_result(batch.sizes, {width}, kNaN);
  const Index non_finite = per_pack<SingularValuesWorkspace>(
      batch, singular_values_width(),
      [&]<class Views>(Views views, std::span<const Index> indices, auto& workspace) {
        std::vector<double*> out(indices.size());
        for (std::size_t k = 0; k < indices.size(); ++k) out[k] = result.data + indices[k] * width;
        singular_values(views, std::span<double* const>(out), workspace);
      });
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_singular_values(py::module_& module) {
  define(module, "singular_values", &values, "attention", "lengths");
}

}  // namespace attnscope
