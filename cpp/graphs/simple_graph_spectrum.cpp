// SPDX-License-Identifier: MIT
#include "graphs/simple_graph_spectrum.h"

#include <algorithm>
#include <bit>

#include "graphs/graph_rows.h"
#include "linalg/packed_tridiagonal.h"

namespace attnscope {
namespace {

Index words_of(Index size) { return (size + 63) / 64; }

// Up to this size the tridiagonal form of a pack costs less than a factor and the steps with it:
// measured for full packs of eight, 0.6 against 0.7 ms for the graphs of a map of 160 nodes, 1.0
// against 0.85 of one of 192.
constexpr Index kLargestPacked = 160;

// What λ2 from float32 may be off by for certain, as a share of it: half of what `fast` states.
constexpr double kMostFastError = 5e-7;

// The size that a graph on m of n nodes is solved in, from itself alone, so that its bits do not
// depend on what it is packed with.
Index packed_size(Index m, Index n) { return m == n ? n : std::min(n, (m + 3) / 4 * 4); }

}  // namespace

void SimpleGraphSpectra::add(const LevelTable& level, Level above, const std::int64_t* degree,
                             std::int64_t components, double* fiedler_value, double* gap,
                             Precision precision, bool* solved_exactly) {
  const Index n = level.n;
  *gap = n < 3 ? kNaN : 0.0;
  rest_.clear();
  for (Index i = 0; i < n; ++i) {
    if (degree[i] != n - 1) rest_.push_back(i);
  }
  const Index m = static_cast<Index>(rest_.size());
  const double base = static_cast<double>(n - m);
  if (n == 1 || components >= 3) {
    *fiedler_value = 0.0;
  } else if (m == 0) {
    *fiedler_value = base;
  } else if (m == 2) {
    // Two nodes that do not touch: the third eigenvalue is n.
    *fiedler_value = base;
    if (n >= 3) *gap = 2.0;
  } else {
    // A large graph in two pieces is solved beside the vector that tells them apart.
    const bool large = m > kLargestPacked;
    Index in_pieces = components;
    piece_.clear();
    if (m < n || (large && components == 2)) {
      // Copies, which what the search writes cannot change.
      const auto edge = [above, rest = rest_.data(), row = level.row(0), stride = level.stride](
                            Index i, Index j) {
        return row[rest[i] * stride + rest[j]] > above ? 1.0 : 0.0;
      };
      Index first = 0;
      in_pieces = count_graph_components(m, piece_, edge, 3, &first);
      piece_.resize(in_pieces == 2 ? first : 0);
    }
    *fiedler_value = base;
    if (in_pieces >= 3) return;
    if (large && solve_alone(level, above, degree, fiedler_value, gap)) return;
    const Index size = packed_size(m, n);
    if (size >= static_cast<Index>(queues_.size())) {
      queues_.resize(size + 1);
      float_queues_.resize(size + 1);
    }
    const bool fast = precision == Precision::fast;
    Queue& queue = fast ? float_queues_[size] : queues_[size];
    queue.pending.push_back({fiedler_value, gap, base, m, in_pieces == 2, solved_exactly});
    store(level, above, degree, size, queue);
    const auto waiting = static_cast<Index>(queue.pending.size());
    if (fast && waiting == float_graph_pack_width()) solve_in_float32(size, queue);
    if (!fast && waiting == kPackWidth) solve(size, queue);
  }
}

bool SimpleGraphSpectra::solve_alone(const LevelTable& level, Level above,
                                     const std::int64_t* degree, double* fiedler_value,
                                     double* gap) {
  const Index m = static_cast<Index>(rest_.size());
  const auto base = static_cast<double>(level.n - m);
  degree_.resize(rest_.size());
  for (Index i = 0; i < m; ++i) degree_[i] = static_cast<double>(degree[rest_[i]]) - base;
  laplacian_.read({level, above, rest_, degree_});
  std::optional<EigenvaluePair> pair = preconditioned_pair(laplacian_, piece_, preconditioned_);
  if (!pair) pair = block_inverse_lanczos(laplacian_, piece_, inverse_);
  if (!pair) return false;
  *fiedler_value = base + pair->mu2;
  *gap = std::max(0.0, pair->mu3 - pair->mu2);
  return true;
}

// The edges and degrees of H behind the queue's last graph.
void SimpleGraphSpectra::store(const LevelTable& level, Level above, const std::int64_t* degree,
                               Index size, Queue& queue) {
  const Index n = level.n;
  const Index m = static_cast<Index>(rest_.size());
  const Index words = words_of(size);
  const std::size_t edges = queue.edges.size(), degrees = queue.degree.size();
  queue.edges.resize(edges + size * words);
  queue.degree.resize(degrees + size);
  row_.resize(level.stride);
  for (Index i = 0; i < m; ++i) {
    queue.degree[degrees + i] = static_cast<double>(degree[rest_[i]] - (n - m));
    const Level* from = level.row(rest_[i]);
    if (m < n) {
      for (Index j = 0; j < i; ++j) row_[j] = from[rest_[j]];
      from = row_.data();
    }
    std::uint64_t* row = queue.edges.data() + edges + i * words;
    for (Index begin = 0; begin < i; begin += 64) row[begin / 64] = bits_above(from + begin, above);
  }
}

void SimpleGraphSpectra::flush() {
  for (std::size_t size = 0; size < float_queues_.size(); ++size) {
    if (!float_queues_[size].pending.empty())
      solve_in_float32(static_cast<Index>(size), float_queues_[size]);
  }
  for (std::size_t size = 0; size < queues_.size(); ++size) {
    if (!queues_[size].pending.empty()) solve(static_cast<Index>(size), queues_[size]);
  }
}

void SimpleGraphSpectra::solve_in_float32(Index size, Queue& queue) {
  const Index row_words = size * words_of(size);
  std::vector<GraphBits> graphs;
  for (const Pending& pending : queue.pending) {
    const auto at = static_cast<Index>(graphs.size());
    graphs.push_back(
        {queue.edges.data() + at * row_words, queue.degree.data() + at * size, pending.nodes});
  }
  std::vector<FloatPair> pairs(graphs.size());
  float_pack_.solve(size, graphs, pairs.data());
  for (std::size_t at = 0; at < pairs.size(); ++at) {
    const Pending& pending = queue.pending[at];
    const FloatPair& pair = pairs[at];
    const double mu2 = pending.in_two ? 0.0 : pair.mu2;
    if (pending.in_two || pair.error <= kMostFastError * (pending.base + mu2)) {
      *pending.fiedler_value = pending.base + mu2;
      *pending.gap = std::max(0.0, pair.mu3 - mu2);
      continue;
    }
    *pending.solved_exactly = true;
    Queue& exact = queues_[size];
    exact.pending.push_back(pending);
    exact.edges.insert(exact.edges.end(), graphs[at].edges, graphs[at].edges + row_words);
    exact.degree.insert(exact.degree.end(), graphs[at].degree, graphs[at].degree + size);
    if (static_cast<Index>(exact.pending.size()) == kPackWidth) solve(size, exact);
  }
  queue.pending.clear();
  queue.edges.clear();
  queue.degree.clear();
}

// The lower triangles of L(H) + 11ᵀ: 1 where H has no edge, 0 where it has. The rows behind those
// of H, and the lanes without a graph, are eigenvalues far above.
void SimpleGraphSpectra::solve(Index size, Queue& queue) {
  const Index count = static_cast<Index>(queue.pending.size());
  const Index words = words_of(size);
  const double far = 2.0 * static_cast<double>(size);
  Lanes* a = lane_buffer(matrices_, triangle_row(size));
  const LaneMask one = std::bit_cast<LaneMask>(broadcast(1.0));
  for (Index i = 0; i < size; ++i) {
    Lanes* row = a + triangle_row(i);
    Lanes diagonal_entry = broadcast(far);
    LaneMask inside{};
    for (Index lane = 0; lane < count; ++lane) {
      if (i >= queue.pending[lane].nodes) continue;
      diagonal_entry[lane] = queue.degree[lane * size + i] + 1.0;
      inside[lane] = -1;
    }
    for (Index begin = 0; begin < i; begin += 64) {
      LaneMask bits = ~LaneMask{};
      for (Index lane = 0; lane < count; ++lane) {
        if (inside[lane] != 0) {
          bits[lane] = static_cast<long>(queue.edges[(lane * size + i) * words + begin / 64]);
        }
      }
      const Index end = std::min(begin + 64, i);
      for (Index j = begin; j < end; ++j) {
        row[j] = std::bit_cast<Lanes>(((bits & 1) - 1) & one);
        bits >>= 1;
      }
    }
    row[i] = diagonal_entry;
  }
  Lanes* diagonal = lane_buffer(vectors_, 6 * size);
  Lanes* beside = diagonal + size;
  tridiagonalize(a, size, diagonal, beside, 1, diagonal + 2 * size);
  Lanes high{};
  for (Index lane = 0; lane < count; ++lane) {
    high[lane] = static_cast<double>(queue.pending[lane].nodes) * (1.0 + 1e-12);
  }
  Lanes first, second;
  two_smallest_eigenvalues(diagonal, beside, size, high, first, second);
  for (Index lane = 0; lane < count; ++lane) {
    const Pending& one_graph = queue.pending[lane];
    const double mu2 = one_graph.in_two ? 0.0 : first[lane];
    *one_graph.fiedler_value = one_graph.base + mu2;
    *one_graph.gap = second[lane] - mu2;
  }
  queue.pending.clear();
  queue.edges.clear();
  queue.degree.clear();
}

}  // namespace attnscope
