// SPDX-License-Identifier: MIT
#include "kernels/singular_values.h"

#include "bindings/batched.h"

namespace attnscope {
namespace {

py::tuple values(const py::object& attention, const py::object& lengths) {
  const Batch batch = make_batch(attention, lengths);
  const Result<double> result = make_result(batch.sizes, {batch.n}, kNaN);
  const Index spoiled = per_matrix<SingularValuesWorkspace>(
      batch, [&](const auto& view, Index index, auto& workspace) {
        singular_values(view, result.data + index * batch.n, workspace);
      });
  return py::make_tuple(result.tensor, spoiled);
}

}  // namespace

void bind_singular_values(py::module_& module) {
  module.def("singular_values", &values, py::arg("attention"), py::arg("lengths"));
}

}  // namespace attnscope
