// SPDX-License-Identifier: MIT
#include "kernels/graphs/laplacian.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// The eigenvalues and the number of matrices that are not finite; `fast`, also 0: float32 holds its
// bound on every matrix.
py::tuple eigenvalues(Argument attention, Argument lengths, Index k, const std::string& symmetrize,
                      std::optional<double> threshold, bool normalized,
                      const std::string& precision) {
  const Batch batch = make_batch(attention, lengths);
  const GraphOptions options{symmetrize_from(symmetrize), threshold, normalized};
  const Precision level = precision_from(precision);
  const Result<double> result = make_result(batch.sizes, {k}, kNaN);
  const Index non_finite = per_pack<LaplacianWorkspace>(
      batch, shared_pack_width(batch, laplacian_pack_width(batch.shortest(), level)),
      [&](auto views, auto indices, auto& workspace) {
        double* out[kWidestPack];
        for (std::size_t m = 0; m < indices.size(); ++m) out[m] = result.data + indices[m] * k;
        laplacian_spectra(views, options, std::min<Index>(k, views.front().rows()),
                          std::span<double* const>(out, indices.size()), workspace, level);
      });
  if (level == Precision::fast) return py::make_tuple(result.tensor, non_finite, 0);
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_laplacian(py::module_& module) {
  module.def("laplacian_eigenvalues", &eigenvalues, py::arg("attention"), py::arg("lengths"),
             py::arg("k"), py::arg("symmetrize"), py::arg("threshold"), py::arg("normalized"),
             precision_argument());
}

}  // namespace attnscope
