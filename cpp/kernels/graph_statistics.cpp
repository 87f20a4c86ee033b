// SPDX-License-Identifier: MIT
#include "kernels/graph_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A level counts thresholds in a byte, so more of them than this are worked off in turns.
constexpr Index kMostLevels = 255;

using Level = std::uint8_t;

// The smallest number of type Wide that is >= threshold: an entry of type Wide reaches one exactly when
// it reaches the other.
template <class Wide>
Wide rounded_up(double threshold) {
  Wide value = static_cast<Wide>(threshold);
  if (static_cast<double>(value) < threshold) {
    value = std::nextafter(value, std::numeric_limits<Wide>::infinity());
  }
  return value;
}

// levels[j] = how many of the ascending thresholds row[j] reaches.
template <class Wide>
void levels_of(const Wide* row, Index n, const std::vector<Wide>& thresholds, Level* levels) {
  constexpr Index kBlock = 128 / sizeof(Wide);
  Wide counts[kBlock];
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index size = std::min(kBlock, n - begin);
    Wide entries[kBlock] = {};
    std::copy(row + begin, row + begin + size, entries);
    std::fill(counts, counts + kBlock, Wide{0});
    for (const Wide threshold : thresholds) {
      for (Index k = 0; k < kBlock; ++k) counts[k] += entries[k] >= threshold ? Wide{1} : Wide{0};
    }
    for (Index k = 0; k < size; ++k) levels[begin + k] = static_cast<Level>(counts[k]);
  }
}

// Fills workspace.directed from A, the diagonal 0.
template <class Scalar>
void read_levels(const MatrixView<Scalar>& attention, const double* sorted, Index count,
                 std::vector<Level>& directed) {
  using Wide = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;
  const Index n = attention.rows();
  std::vector<Wide> thresholds(static_cast<std::size_t>(count));
  std::transform(sorted, sorted + count, thresholds.begin(), rounded_up<Wide>);
  std::vector<Wide> row(static_cast<std::size_t>(n));
  directed.resize(static_cast<std::size_t>(n * n));
  for (Index i = 0; i < n; ++i) {
    const Scalar* entries = attention.data() + i * attention.outerStride();
    const Index stride = attention.innerStride();
    for (Index j = 0; j < n; ++j) row[j] = static_cast<Wide>(entries[j * stride]);
    levels_of(row.data(), n, thresholds, directed.data() + i * n);
    directed[i * n + i] = 0;
  }
}

// level = max(directed, directedᵀ), in square tiles that stay in the first-level cache.
void symmetrize_levels(const std::vector<Level>& directed, Index n, std::vector<Level>& level) {
  constexpr Index kTile = 64;
  level.resize(static_cast<std::size_t>(n * n));
  for (Index i0 = 0; i0 < n; i0 += kTile) {
    for (Index j0 = 0; j0 <= i0; j0 += kTile) {
      for (Index i = i0; i < std::min(i0 + kTile, n); ++i) {
        for (Index j = j0; j < std::min(j0 + kTile, i + 1); ++j) {
          const Level larger = std::max(directed[i * n + j], directed[j * n + i]);
          level[i * n + j] = larger;
          level[j * n + i] = larger;
        }
      }
    }
  }
}

// counts[t, j] = number of rows i with matrix[i, j] > t. Bytes are added first, since they are 32 to a
// vector, and carried over before any can pass 255.
void count_columns(const std::vector<Level>& matrix, Index n, Index count,
                   std::vector<std::uint8_t>& narrow, std::vector<std::int64_t>& counts) {
  counts.assign(static_cast<std::size_t>(count * n), 0);
  for (Index begin = 0; begin < n; begin += 255) {
    narrow.assign(static_cast<std::size_t>(count * n), 0);
    for (Index i = begin; i < std::min(begin + 255, n); ++i) {
      const Level* row = matrix.data() + i * n;
      for (Index t = 0; t < count; ++t) {
        std::uint8_t* counter = narrow.data() + t * n;
        const Level reached = static_cast<Level>(t);
        for (Index j = 0; j < n; ++j) {
          counter[j] = static_cast<std::uint8_t>(counter[j] + (row[j] > reached ? 1 : 0));
        }
      }
    }
    for (Index k = 0; k < count * n; ++k) counts[k] += narrow[k];
  }
}

// components[t] for all thresholds from one maximum spanning tree of the levels: an edge of the tree
// with level > t joins two components of graph t.
void count_all_components(const std::vector<Level>& level, Index n, Index count,
                          std::vector<Level>& best, std::vector<std::int64_t>& components) {
  components.assign(static_cast<std::size_t>(count), n);
  best.assign(static_cast<std::size_t>(n), 0);
  std::vector<bool> taken(static_cast<std::size_t>(n), false);
  Index node = 0;
  for (Index step = 1; step < n; ++step) {
    taken[node] = true;
    const Level* row = level.data() + node * n;
    Index next = -1;
    for (Index j = 0; j < n; ++j) {
      if (taken[j]) continue;
      best[j] = std::max(best[j], row[j]);
      if (next < 0 || best[j] > best[next]) next = j;
    }
    for (Index t = 0; t < best[next]; ++t) --components[t];
    node = next;
  }
}

// Σ_k (2k − n − 1) d_(k) / (n Σ d), exact up to the division.
double gini_of(const std::int64_t* degree, Index n, std::vector<std::int64_t>& histogram) {
  histogram.assign(static_cast<std::size_t>(n) + 1, 0);
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
                       std::vector<std::int64_t>& histogram, const GraphStatisticsOut& out) {
  const double nodes = static_cast<double>(n);
  const std::int64_t sum = std::accumulate(degree, degree + n, std::int64_t{0});
  const std::int64_t hub = *std::max_element(degree, degree + n);
  const double edges = 0.5 * static_cast<double>(sum);
  *out.density = n < 2 ? kNaN : edges / (0.5 * nodes * (nodes - 1.0));
  *out.hub_share = n < 2 ? kNaN : static_cast<double>(hub) / (nodes - 1.0);
  *out.gini = gini_of(degree, n, histogram);
  *out.centralization =
      n < 3 ? kNaN : static_cast<double>(hub * n - sum) / ((nodes - 1.0) * (nodes - 2.0));
  const double mean = static_cast<double>(sum) / nodes;
  double squares = 0.0;
  for (Index i = 0; i < n; ++i) {
    const double deviation = static_cast<double>(degree[i]) - mean;
    squares += deviation * deviation;
  }
  *out.degree_variance = squares / nodes;
  // Every edge that does not touch the hub joins two of the n − 1 other nodes.
  const double others = 0.5 * (nodes - 1.0) * (nodes - 2.0);
  *out.star_likeness =
      n < 3 ? kNaN : *out.hub_share * (1.0 - (edges - static_cast<double>(hub)) / others);
  *out.effective = n >= 2 && *out.density >= 0.05 && *out.density <= 0.95;

  const std::int64_t in_sum = std::accumulate(in_degree, in_degree + n, std::int64_t{0});
  const std::int64_t in_hub = *std::max_element(in_degree, in_degree + n);
  *out.in_degree_gini = gini_of(in_degree, n, histogram);
  *out.in_degree_centralization =
      n < 2 ? kNaN : static_cast<double>(in_hub * n - in_sum) / ((nodes - 1.0) * (nodes - 1.0));
}

}  // namespace

GraphStatisticsOut GraphStatisticsOut::at(Index threshold) const {
  return {fiedler_value + threshold,
          laplacian_gap + threshold,
          components + threshold,
          density + threshold,
          hub_share + threshold,
          gini + threshold,
          centralization + threshold,
          degree_variance + threshold,
          star_likeness + threshold,
          in_degree_gini + threshold,
          in_degree_centralization + threshold,
          effective + threshold};
}

template <class Scalar>
void graph_statistics(const MatrixView<Scalar>& attention, const double* thresholds, Index count,
                      const GraphStatisticsOut& out, GraphStatisticsWorkspace& workspace) {
  const Index n = attention.rows();
  for (Index first = 0; first < count; first += kMostLevels) {
    const Index size = std::min(kMostLevels, count - first);
    std::vector<Index>& order = workspace.order;
    order.resize(static_cast<std::size_t>(size));
    std::iota(order.begin(), order.end(), first);
    std::sort(order.begin(), order.end(),
              [&](Index a, Index b) { return thresholds[a] < thresholds[b]; });
    workspace.sorted.resize(static_cast<std::size_t>(size));
    for (Index t = 0; t < size; ++t) workspace.sorted[t] = thresholds[order[t]];

    read_levels(attention, workspace.sorted.data(), size, workspace.directed);
    symmetrize_levels(workspace.directed, n, workspace.level);
    count_columns(workspace.directed, n, size, workspace.narrow, workspace.in_degree);
    count_columns(workspace.level, n, size, workspace.narrow, workspace.degree);
    count_all_components(workspace.level, n, size, workspace.reached, workspace.components);
    for (Index t = 0; t < size; ++t) {
      const GraphStatisticsOut one = out.at(order[t]);
      *one.components = workspace.components[t];
      degree_statistics(workspace.degree.data() + t * n, workspace.in_degree.data() + t * n, n,
                        workspace.histogram, one);
      workspace.spectra.add(workspace.level.data(), n, static_cast<Level>(t),
                            workspace.degree.data() + t * n, workspace.components[t],
                            one.fiedler_value, one.laplacian_gap);
    }
  }
}

void finish_graph_statistics(GraphStatisticsWorkspace& workspace) { workspace.spectra.flush(); }

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                          \
  template void graph_statistics<Scalar>(const MatrixView<Scalar>&, const double*, Index,      \
                                         const GraphStatisticsOut&, GraphStatisticsWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
