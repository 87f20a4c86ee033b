// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// The fields and the number of matrices that are not finite; with precision "fast" behind them how
// many maps have a graph that was solved exactly.
py::tuple graph_statistics_of(Argument attention, Argument lengths, Argument thresholds,
                              const std::string& precision) {
  const Precision level = precision_from(precision);
  const Batch batch = make_batch(attention, lengths);
  const Thresholds levels = make_thresholds(batch, thresholds);
  using G = GraphStatistics;
  const Fields fields(batch.sizes, {levels.size}, G{}, &G::fiedler_value, &G::laplacian_gap,
                      &G::components, &G::density, &G::hub_share, &G::gini, &G::centralization,
                      &G::degree_variance, &G::star_likeness, &G::in_degree_gini,
                      &G::in_degree_centralization, &G::effective, &G::strong_components);
  std::vector<G> statistics(batch.count * levels.size);
  const Index block = block_size(batch, 1);
  // No more than there are blocks: each one finishes what it has packed, on a thread of its own.
  std::vector<GraphStatisticsWorkspace> workers(worker_count((batch.count + block - 1) / block));
  const Index non_finite = per_matrix_in_turn(
      batch, workers, block, block, [&](const auto& view, Index index, Index, auto& workspace) {
        if (!all_finite(view)) return false;
        graph_statistics(view, levels.of(index), levels.size,
                         statistics.data() + index * levels.size, workspace, level);
        return true;
      });
  run_blocks(static_cast<Index>(workers.size()), 1,
             [&](Index at, Index, int) { finish_graph_statistics(workers[at]); });
  for (std::size_t at = 0; at < statistics.size(); ++at) fields.set(at, statistics[at]);
  Index measured_exactly = 0;
  for (auto map = statistics.begin(); map != statistics.end(); map += levels.size) {
    measured_exactly +=
        std::any_of(map, map + levels.size, [](const G& graph) { return graph.solved_exactly; });
  }
  return with_fallbacks(py::make_tuple(fields.tensors(), non_finite), level == Precision::fast,
                        measured_exactly);
}

}  // namespace

void bind_graph_statistics(py::module_& module) {
  define(module, "graph_statistics", &graph_statistics_of, "attention", "lengths", "thresholds",
         precision_argument());
}

}  // namespace attnscope
