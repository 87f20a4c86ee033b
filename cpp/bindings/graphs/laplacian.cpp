// SPDX-License-Identifier: MIT
#include "kernels/graphs/laplacian.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple eigenvalues(Argument attention, Argument lengths, Index k, const std::string& symmetrize,
                      std::optional<double> threshold, bool normalized) {
  const Batch batch = make_batch(attention, lengths);
  const GraphOptions options{symmetrize_from(symmetrize), threshold, normalized};
  const Result<double> result = make_result(batch.sizes, {k}, kNaN);
  const Index non_finite = per_pack<LaplacianWorkspace>(
      batch, laplacian_pack_width(batch.shortest()),
      [&](auto views, auto indices, auto& workspace) {
        double* out[kWidestPack];
        for (std::size_t m = 0; m < indices.size(); ++m) out[m] = result.data + indices[m] * k;
        laplacian_spectra(views, options, std::min<Index>(k, views.front().rows()),
                          std::span<double* const>(out, indices.size()), workspace);
      });
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_laplacian(py::module_& module) {
  define(module, "laplacian_eigenvalues", &eigenvalues, "attention", "lengths", "k", "symmetrize",
         "threshold", "normalized");
}

}  // namespace attnscope
