// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "graphs/simple_graph_spectrum.h"
#include "graphs/strong_components.h"
#include "graphs/threshold_levels.h"

namespace attnscope {

// The statistics of one graph.
struct GraphStatistics {
  double fiedler_value = kNaN;
  double laplacian_gap = kNaN;
  std::int64_t components = -1;
  std::int64_t strong_components = -1;
  double density = kNaN;
  double hub_share = kNaN;
  double gini = kNaN;
  double centralization = kNaN;
  double degree_variance = kNaN;
  double star_likeness = kNaN;
  double in_degree_gini = kNaN;
  double in_degree_centralization = kNaN;
  bool effective = false;
  bool solved_exactly = false;  // asked for `fast`, which float32 does not hold
};

struct GraphStatisticsWorkspace {
  RowScratch rows;
  LevelTable directed;  // how many thresholds A_ij reaches
  LevelTable level;     // how many thresholds max(A_ij, A_ji) reaches
  LevelSearch search;
  StrongSearch strong_search;
  std::vector<std::int64_t> degree;     // [T, n]
  std::vector<std::int64_t> in_degree;  // [T, n]
  std::vector<std::int64_t> components;
  std::vector<std::int64_t> strong_components;
  std::vector<std::int64_t> histogram;
  std::vector<Index> order;
  std::vector<double> sorted;
  SimpleGraphSpectra spectra;
};

// Statistics of the simple undirected graphs 1[max(A_ij, A_ji) >= t], i ≠ j, for each of `count`
// thresholds in any order to the same place of `out`, and of the in-degrees and
// the strongly connected components of the directed graphs 1[A_ij >= t], i ≠ j. A is read once for
// all thresholds; each entry is compared as the float64 number it stands for. Ranges: shares,
// densities, gini and centralization in [0, 1]. Without a divisor (gap and centralization for n <
// 3, hub share and density for n < 2, star likeness without two nodes beside the hub) a statistic
// is NaN; gini of a graph without edges is 0. fiedler_value and laplacian_gap are there after
// finish_graph_statistics; `fast`, the former is off by less than 1e-6 of itself and the latter by
// less than 5e-6 n. Cost O(T n²) and one O(n³) spectrum for every graph with at most two
// components.
template <class Scalar>
void graph_statistics(const MatrixView<Scalar>& attention, const double* thresholds, Index count,
                      GraphStatistics* out, GraphStatisticsWorkspace& workspace,
                      Precision precision = Precision::exact);

// Writes the fiedler_value and laplacian_gap that calls with this workspace still owe: graphs of
// one size wait for each other, over as many calls as it takes. A matrix's values do not depend on
// the others.
void finish_graph_statistics(GraphStatisticsWorkspace& workspace);

}  // namespace attnscope
