// SPDX-License-Identifier: MIT
#include "kernels/persistence.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace attnscope {
namespace {

void write_edge(Edge edge, std::int32_t* out) {
  out[0] = static_cast<std::int32_t>(edge_row(edge));
  out[1] = static_cast<std::int32_t>(edge_column(edge));
}

bool sorts_before(const Bar& a, const Bar& b) {
  return std::tie(a.dimension, a.birth, a.death, a.birth_edge[0], a.birth_edge[1], a.death_edge[0],
                  a.death_edge[1]) < std::tie(b.dimension, b.birth, b.death, b.birth_edge[0],
                                              b.birth_edge[1], b.death_edge[0], b.death_edge[1]);
}

}  // namespace

template <class Scalar>
void persistence(const MatrixView<Scalar>& attention, const PersistenceOptions& options,
                 PersistenceWorkspace& workspace, std::vector<Bar>& bars) {
  EdgeOrder& order = workspace.order;
  FlagHomology& homology = workspace.homology;
  order.assign(attention, options.symmetrize, options.metric);
  const std::vector<Edge>& edges = order.edges();
  const auto count = static_cast<std::uint32_t>(edges.size());
  homology.reset(order.vertices());
  homology.add(edges, 0, count, order.radius_begin());

  const auto first = static_cast<std::ptrdiff_t>(bars.size());
  for (const std::uint32_t merge : homology.merges()) {
    Bar bar{0.0, order.dissimilarity(merge), {-1, -1}, {-1, -1}, 0};
    if (bar.death == 0.0) continue;
    write_edge(edges[merge], bar.death_edge);
    bars.push_back(bar);
  }
  bars.push_back({0.0, std::numeric_limits<double>::infinity(), {-1, -1}, {-1, -1}, 0});
  if (options.max_dimension >= 1) {
    for (const FlagHomology::Cycle& cycle : homology.closed()) {
      Bar bar{order.dissimilarity(cycle.birth), order.dissimilarity(cycle.death), {}, {}, 1};
      if (bar.birth == bar.death) continue;
      write_edge(edges[cycle.birth], bar.birth_edge);
      write_edge(edges[cycle.death], bar.death_edge);
      bars.push_back(bar);
    }
  }
  std::sort(bars.begin() + first, bars.end(), sorts_before);
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                       \
  template void persistence<Scalar>(const MatrixView<Scalar>&, const PersistenceOptions&,   \
                                    PersistenceWorkspace&, std::vector<Bar>&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
