// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include <algorithm>
#include <numeric>

namespace attnscope {
namespace {

// Σ_k (2k − n − 1) d_(k) / (n Σ d), exact up to the division.
double gini_of(const std::int64_t* degree, Index n, std::vector<std::int64_t>& histogram) {
  histogram.assign(n + 1, 0);
  std::int64_t sum = 0;
  for (Index i = 0; i < n; ++i) {
    ++histogram[degree[i]];
    sum += degree[i];
  }
  if (sum == 0) return 0.0;
  std::int64_t weighted = 0;
  std::int64_t rank = 0;
  for (Index value = 0; value <= n; ++value) {
    const std::int64_t equal = histogram[value];
    weighted += value * equal * (2 * rank + equal - n);
    rank += equal;
  }
  return static_cast<double>(weighted) / (static_cast<double>(n) * static_cast<double>(sum));
}

// The statistics that degrees and components decide.
void degree_statistics(const std::int64_t* degree, const std::int64_t* in_degree, Index n,
                       std::vector<std::int64_t>& histogram, GraphStatistics& out) {
  const double nodes = static_cast<double>(n);
  const std::int64_t sum = std::accumulate(degree, degree + n, std::int64_t{0});
  const std::int64_t hub = *std::max_element(degree, degree + n);
  const double edges = 0.5 * static_cast<double>(sum);
  out.density = n < 2 ? kNaN : edges / (0.5 * nodes * (nodes - 1.0));
  out.hub_share = n < 2 ? kNaN : static_cast<double>(hub) / (nodes - 1.0);
  out.gini = gini_of(degree, n, histogram);
  out.centralization =
      n < 3 ? kNaN : static_cast<double>(hub * n - sum) / ((nodes - 1.0) * (nodes - 2.0));
  const double mean = static_cast<double>(sum) / nodes;
  double squares = 0.0;
  for (Index i = 0; i < n; ++i) {
    const double deviation = static_cast<double>(degree[i]) - mean;
    squares += deviation * deviation;
  }
  out.degree_variance = squares / nodes;
  // Every edge that does not touch the hub joins two of the n − 1 other nodes.
  const double others = 0.5 * (nodes - 1.0) * (nodes - 2.0);
  out.star_likeness =
      n < 3 ? kNaN : out.hub_share * (1.0 - (edges - static_cast<double>(hub)) / others);
  out.effective = n >= 2 && out.density >= 0.05 && out.density <= 0.95;

  const std::int64_t in_sum = std::accumulate(in_degree, in_degree + n, std::int64_t{0});
  const std::int64_t in_hub = *std::max_element(in_degree, in_degree + n);
  out.in_degree_gini = gini_of(in_degree, n, histogram);
  out.in_degree_centralization =
      n < 2 ? kNaN : static_cast<double>(in_hub * n - in_sum) / ((nodes - 1.0) * (nodes - 1.0));
}

}  // namespace

template <class Scalar>
void graph_statistics(const MatrixView<Scalar>& attention, const double* thresholds, Index count,
                      GraphStatistics* out, GraphStatisticsWorkspace& workspace,
                      Precision precision) try {
  const Index n = attention.rows();
  for (Index first = 0; first < count; first += kMostLevels) {
    const Index size = std::min(kMostLevels, count - first);
    std::vector<Index>& order = workspace.order;
    order.resize(size);
    std::iota(order.begin(), order.end(), first);
    std::sort(order.begin(), order.end(),
              [&](Index a, Index b) { return thresholds[a] < thresholds[b]; });
    workspace.sorted.resize(size);
    for (Index t = 0; t < size; ++t) workspace.sorted[t] = thresholds[order[t]];

    read_levels(attention, workspace.sorted.data(), size, workspace.directed, workspace.rows);
    symmetrize_levels(workspace.directed, workspace.level);
    count_levels(workspace.directed, size, workspace.in_degree);
    count_levels(workspace.level, size, workspace.degree);
    count_level_components(workspace.level, size, workspace.search, workspace.components);
    count_strong_components(workspace.directed, size, workspace.strong_search,
                            workspace.strong_components);
    for (Index t = 0; t < size; ++t) {
      GraphStatistics& statistics = out[order[t]];
      statistics.components = workspace.components[t];
      statistics.strong_components = workspace.strong_components[t];
      degree_statistics(workspace.degree.data() + t * n, workspace.in_degree.data() + t * n, n,
                        workspace.histogram, statistics);
      workspace.spectra.add(workspace.level, static_cast<Level>(t), workspace.degree.data() + t * n,
                            workspace.components[t], &statistics.fiedler_value,
                            &statistics.laplacian_gap, precision, &statistics.solved_exactly);
    }
  }
} catch (...) {
  // Graphs that wait would be written to where answers of this call were to go.
  workspace.spectra = SimpleGraphSpectra();
  throw;
}

void finish_graph_statistics(GraphStatisticsWorkspace& workspace) try {
  workspace.spectra.flush();
} catch (...) {
  workspace.spectra = SimpleGraphSpectra();
  throw;
}

ATTNSCOPE_COMPILE(graph_statistics);

}  // namespace attnscope
