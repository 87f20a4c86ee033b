// SPDX-License-Identifier: MIT
#include "kernels/homology/persistence.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace attnscope {
namespace {

using Ends = std::array<std::int32_t, 2>;
constexpr Ends kNowhere = {-1, -1};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Ends ends_of(Edge edge) {
  return {static_cast<std::int32_t>(edge_row(edge)), static_cast<std::int32_t>(edge_column(edge))};
}

bool sorts_before(const Bar& a, const Bar& b) {
  return std::tie(a.birth, a.death, a.birth_edge) < std::tie(b.birth, b.death, b.birth_edge);
}

// Edges between two looks at whether anything is left to find.
constexpr std::uint32_t kSlice = 64;

// Adds edges until no later one can change anything.
void run(EdgeOrder& order, FlagHomology& homology) {
  const std::vector<Edge>& edges = order.edges();
  homology.reset(order.vertices());
  FlagHomology::Rest rest = FlagHomology::Rest::unknown;
  Edge awaited = 0;
  std::uint32_t look_again = 0;
  std::uint32_t begin = 0;
  while (begin < edges.size() || order.next()) {
    const auto end = std::min(static_cast<std::uint32_t>(edges.size()), begin + kSlice);
    homology.add(edges, begin, end, order.radius_begin());
    begin = end;
    if (end < look_again) continue;
    if (rest == FlagHomology::Rest::opens && !homology.joined(awaited)) continue;
    rest = homology.look_ahead(order, awaited);
    if (rest == FlagHomology::Rest::nothing) return;
    if (homology.components() == 1 && homology.cycles() == 0) look_again = end + end / 8;
  }
}

}  // namespace

template <class Scalar>
bool persistence(const MatrixView<Scalar>& attention, const PersistenceOptions& options,
                 PersistenceWorkspace& workspace, std::vector<Bar>& bars, Ahead ahead) {
  bool causal = false;
  if (options.metric == Metric::distance) {
    if (!none_is_nan(attention)) return false;
  } else {
    MatrixReading reading{true, attention.cols() >= 2};
    read_lines(attention, 0, along_memory(attention).rows(), reading);
    if (!reading.finite) return false;
    causal = reading.causal;
  }
  EdgeOrder& order = workspace.order;
  FlagHomology& homology = workspace.homology;
  const auto join = [&](Edge edge, double death) {
    const bool never = death == kInfinity;
    if (death != 0.0) bars.push_back({0.0, death, kNowhere, never ? kNowhere : ends_of(edge), 0});
  };
  const Bar endless{0.0, kInfinity, kNowhere, kNowhere, 0};
  if (options.max_dimension == 0) {
    SpanningTree& tree = workspace.tree;
    if (attention.rows() > 1) {
      tree.assign(attention, options.symmetrize, options.metric, causal, ahead);
      for (std::uint32_t k = 0; k < tree.edges().size(); ++k)
        join(tree.edges()[k], tree.dissimilarity(k));
    }
    bars.push_back(endless);
    return true;
  }
  order.assign(attention, options.symmetrize, options.metric, causal);
  run(order, homology);
  const std::vector<Edge>& edges = order.edges();
  for (const std::uint32_t merge : homology.merges())
    join(edges[merge], order.dissimilarity(merge));
  bars.push_back(endless);
  const auto first = static_cast<std::ptrdiff_t>(bars.size());
  for (const FlagHomology::Cycle& cycle : homology.classes()) {
    // A class still open was born at the enclosing radius and ends there.
    if (cycle.death == FlagHomology::kOpen) continue;
    const double birth = order.dissimilarity(cycle.birth), death = order.dissimilarity(cycle.death);
    if (birth == death) continue;
    const Ends filled = death == kInfinity ? kNowhere : ends_of(edges[cycle.death]);
    bars.push_back({birth, death, ends_of(edges[cycle.birth]), filled, 1});
  }
  // Classes come by age, so only those born at one distance can stand in another order.
  if (!std::is_sorted(bars.begin() + first, bars.end(), sorts_before)) {
    std::sort(bars.begin() + first, bars.end(), sorts_before);
  }
  return true;
}

ATTNSCOPE_COMPILE(persistence);

}  // namespace attnscope
