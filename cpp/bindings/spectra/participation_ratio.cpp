// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include "bindings/batched.h"
#include "bindings/options.h"
#include "bindings/threads.h"

namespace attnscope {
namespace {

// All threads for each matrix, one after another, where there are fewer matrices than threads and
// each is large; otherwise each thread has matrices of its own.
SharedWork shared_work(const Batch& batch) {
  constexpr Index kFewestEntries = Index{1} << 18;
  const int workers = thread_count();
  if (batch.count >= workers || batch.queries * batch.n < kFewestEntries) return {};
  return {workers, [workers](Index parts, const std::function<void(Index, int)>& work) {
            share_parts(parts, workers, work);
          }};
}

// (ratio, non_finite); with precision "fast" behind them how many maps were measured exactly.
py::tuple participation_ratio(Argument attention, Argument lengths, const std::string& spectrum,
                              const std::string& precision) {
  if (spectrum != "singular" && spectrum != "eigen" && spectrum != "laplacian") {
    throw py::value_error("spectrum must be 'singular', 'eigen' or 'laplacian', got '" + spectrum +
                          "'");
  }
  const bool singular = spectrum == "singular", eigen = spectrum == "eigen";
  const Batch batch =
      singular ? make_rectangles(attention, lengths) : make_batch(attention, lengths);
  const bool fast = precision_from(precision) == Precision::fast;
  std::atomic<Index> measured_exactly{0};
  const SharedWork shared = singular ? shared_work(batch) : SharedWork{};
  const py::tuple result = result_per_matrix<ParticipationRatioWorkspace>(
      batch, {}, kNaN,
      [&](const auto& view, Index, double* out, auto& workspace) {
        if (fast && singular && fast_participation_ratio(view, out, workspace, shared)) return;
        if (fast) measured_exactly.fetch_add(1, std::memory_order_relaxed);
        *out = singular ? participation_ratio_singular(view, workspace, shared)
               : eigen  ? participation_ratio_eigen(view, workspace)
                        : participation_ratio_laplacian(view, workspace);
      },
      shared.share ? batch.count : Index{0});
  if (!fast) return result;
  return py::make_tuple(result[0], result[1], singular ? measured_exactly.load() : Index{0});
}

}  // namespace

void bind_participation_ratio(py::module_& module) {
  module.def("participation_ratio", &participation_ratio, py::arg("attention"), py::arg("lengths"),
             py::arg("spectrum"), precision_argument());
}

}  // namespace attnscope
