// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include "bindings/batched.h"

namespace attnscope {
namespace {

py::tuple participation_ratio(Argument attention, Argument lengths, const std::string& spectrum) {
  if (spectrum != "singular" && spectrum != "eigen" && spectrum != "laplacian") {
    throw py::value_error("spectrum must be 'singular', 'eigen' or 'laplacian', got '" + spectrum +
                          "'");
  }
  const bool singular = spectrum == "singular", eigen = spectrum == "eigen";
  const Batch batch =
      singular ? make_rectangles(attention, lengths) : make_batch(attention, lengths);
  return result_per_matrix<ParticipationRatioWorkspace>(
      batch, {}, kNaN, [&](const auto& view, Index, double* out, auto& workspace) {
        *out = singular ? participation_ratio_singular(view, workspace)
               : eigen  ? participation_ratio_eigen(view, workspace)
                        : participation_ratio_laplacian(view, workspace);
      });
}

}  // namespace

void bind_participation_ratio(py::module_& module) {
  define(module, "participation_ratio", &participation_ratio, "attention", "lengths", "spectrum");
}

}  // namespace attnscope
