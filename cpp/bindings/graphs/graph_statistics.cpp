// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include "bindings/batched.h"

namespace attnscope {
namespace {

py::tuple graph_statistics_of(const py::object& attention, const py::object& lengths,
                     const py::object& thresholds) {
  const Batch batch = make_batch(attention, lengths);
  const Thresholds levels = make_thresholds(batch, thresholds);
  const auto numbers = [&] { return make_result(batch.sizes, {levels.size}, kNaN); };
  const Result<double> fiedler_value = numbers(), laplacian_gap = numbers(), density = numbers(),
                       hub_share = numbers(), gini = numbers(), centralization = numbers(),
                       degree_variance = numbers(), star_likeness = numbers(),
                       in_degree_gini = numbers(), in_degree_centralization = numbers();
  const auto components = make_result(batch.sizes, {levels.size}, std::int64_t{-1});
  const auto effective = make_result(batch.sizes, {levels.size}, false);
  const GraphStatisticsOut out{
      fiedler_value.data,   laplacian_gap.data, components.data,      density.data,
      hub_share.data,       gini.data,          centralization.data,  degree_variance.data,
      star_likeness.data,   in_degree_gini.data, in_degree_centralization.data, effective.data};
  std::vector<GraphStatisticsWorkspace> workers(static_cast<std::size_t>(worker_count(batch.count)));
  const Index non_finite = per_matrix(
      batch, workers, block_size(batch, 1), [&](const auto& view, Index index, auto& workspace) {
        graph_statistics(view, levels.of(index), levels.size, out.at(index * levels.size), workspace);
      });
  run_blocks(static_cast<Index>(workers.size()), 1, [&](Index begin, Index end, int) {
    for (Index k = begin; k < end; ++k) finish_graph_statistics(workers[static_cast<std::size_t>(k)]);
  });
  return py::make_tuple(
      py::make_tuple(fiedler_value.tensor, laplacian_gap.tensor, components.tensor, density.tensor,
                     hub_share.tensor, gini.tensor, centralization.tensor, degree_variance.tensor,
                     star_likeness.tensor, in_degree_gini.tensor, in_degree_centralization.tensor,
                     effective.tensor),
      non_finite);
}

}  // namespace

void bind_graph_statistics(py::module_& module) {
  define(module, "graph_statistics", &graph_statistics_of, "attention", "lengths", "thresholds");
}

}  // namespace attnscope
