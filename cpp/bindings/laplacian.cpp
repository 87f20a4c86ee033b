// SPDX-License-Identifier: MIT
#include "kernels/laplacian.h"

#include "bindings/batched.h"
#include "bindings/graph_options.h"

namespace attnscope {
namespace {

py::tuple eigenvalues(const py::object& attention, const py::object& lengths, Index k,
                      const std::string& symmetrize, std::optional<double> threshold,
                      bool normalized) {
  const Batch batch = make_batch(attention, lengths);
  const GraphOptions options = graph_options(symmetrize, threshold, normalized);
  const Result<double> result = make_result(batch.sizes, {k}, kNaN);
  const Index spoiled =
      per_matrix<LaplacianWorkspace>(batch, [&](const auto& view, Index index, auto& workspace) {
        laplacian_eigenvalues(view, options, std::min<Index>(k, view.rows()),
                              result.data + index * k, workspace);
      });
  return py::make_tuple(result.tensor, spoiled);
}

}  // namespace

void bind_laplacian(py::module_& module) {
  module.def("laplacian_eigenvalues", &eigenvalues, py::arg("attention"), py::arg("lengths"),
             py::arg("k"), py::arg("symmetrize"), py::arg("threshold"), py::arg("normalized"));
}

}  // namespace attnscope
