// SPDX-License-Identifier: MIT
#include "kernels/homology/betti.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

#include "matrix/rows.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

// No weight reaches a threshold of 1 or more, not even a weight of 1.
double level(double threshold) {
  return threshold < 1.0 ? threshold : std::numeric_limits<double>::infinity();
}

// Calls visit(j) for every entry of a row that is at least `cut`, in order.
template <class WideType, class Visit>
void for_each_at_least(const WideType* row, Index n, WideType cut, Visit&& visit) {
  using Floats = typename VectorOf<WideType>::Floats;
  constexpr auto kWidth = static_cast<Index>(kLanes<WideType>);
  Index j = 0;
  for (; j + kWidth <= n; j += kWidth) {
    // Named, because clang's comparison of doubles gives a vector of another whole number.
    const typename VectorOf<WideType>::Numbers reaches = vector_at<Floats>(row + j) >= cut;
    unsigned bits = lane_bits(reaches);
    for (; bits != 0; bits &= bits - 1) visit(j + std::countr_zero(bits));
  }
  for (; j < n; ++j) {
    if (row[j] >= cut) visit(j);
  }
}

// Lists the edges of weight at least the smallest threshold and the first graph that each is in.
template <class Scalar>
void find_edges(const MatrixView<Scalar>& attention, Symmetrize symmetrize,
                BettiWorkspace& workspace) {
  const Index n = attention.rows();
  const std::vector<double>& thresholds = workspace.thresholds;
  const double smallest = thresholds.back();
  workspace.found.clear();
  workspace.group.clear();
  // No mean and no minimum is larger than both its entries, so one of them reaches the threshold
  // too: nearly all pairs are passed over a vector at a time.
  const auto cut = rounded_up<Wide<Scalar>>(smallest);
  RowReader<Scalar> reader(attention, Support{}, workspace.rows);
  for (Index i = 0; i < n; ++i) {
    for_each_at_least(reader.row(i), n, cut, [&](Index j) {
      const double forth = static_cast<double>(attention(i, j));
      const double back = static_cast<double>(attention(j, i));
      if (j == i || (j > i && back >= smallest)) return;  // that row lists the pair
      const double weight = std::min(symmetrized(forth, back, symmetrize), 1.0);
      if (weight < smallest) return;
      std::size_t group = 0;
      while (weight < thresholds[group]) ++group;
      workspace.found.push_back(make_edge(static_cast<Edge>(i), static_cast<Edge>(j)));
      workspace.group.push_back(static_cast<std::uint16_t>(group));
    });
  }
}

// The vertices, those of most edges first, and of equally many in their order: each stands behind
// as many as are counted to have more.
const std::vector<std::uint16_t>& by_connection(BettiWorkspace& workspace) {
  const std::vector<std::uint32_t>& degree = workspace.degree;
  const std::size_t n = degree.size();
  std::vector<std::uint32_t>& places = workspace.places;
  places.assign(n + 1, 0);
  for (const std::uint32_t edges : degree) ++places[n - edges];
  std::partial_sum(places.begin(), places.end(), places.begin());
  workspace.vertices.resize(n);
  for (std::size_t vertex = 0; vertex < n; ++vertex)
    workspace.vertices[places[n - 1 - degree[vertex]]++] = static_cast<std::uint16_t>(vertex);
  return workspace.vertices;
}

}  // namespace

template <class Scalar>
void betti_numbers(const MatrixView<Scalar>& attention, Symmetrize symmetrize,
                   const double* thresholds, Index count, std::int64_t* out,
                   BettiWorkspace& workspace) {
  const Index n = attention.rows();
  std::vector<double>& distinct = workspace.thresholds;
  distinct.resize(count);
  std::transform(thresholds, thresholds + count, distinct.begin(), level);
  std::sort(distinct.begin(), distinct.end(), std::greater<>());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  find_edges(attention, symmetrize, workspace);

  std::vector<std::uint32_t>& ends = workspace.ends;
  ends.assign(distinct.size() + 1, 0);
  workspace.degree.assign(n, 0);
  for (std::size_t k = 0; k < workspace.found.size(); ++k) {
    ++ends[workspace.group[k] + 1u];
    ++workspace.degree[edge_row(workspace.found[k])];
    ++workspace.degree[edge_column(workspace.found[k])];
  }
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  workspace.edges.resize(workspace.found.size());
  for (std::size_t k = 0; k < workspace.found.size(); ++k) {
    workspace.edges[ends[workspace.group[k]]++] = workspace.found[k];
  }

  workspace.homology.reset(by_connection(workspace));
  std::uint32_t begin = 0;
  for (std::size_t group = 0; group < distinct.size(); ++group) {
    workspace.homology.add(workspace.edges, begin, ends[group]);
    begin = ends[group];
    for (Index k = 0; k < count; ++k) {
      if (level(thresholds[k]) != distinct[group]) continue;
      out[2 * k] = workspace.homology.components();
      out[2 * k + 1] = workspace.homology.cycles();
    }
  }
}

ATTNSCOPE_COMPILE(betti_numbers);

}  // namespace attnscope
