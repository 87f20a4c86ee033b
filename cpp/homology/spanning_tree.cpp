// SPDX-License-Identifier: MIT
#include "homology/spanning_tree.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <type_traits>

#include "homology/edge_order.h"
#include "homology/nearest_vertices.h"
#include "homology/rank_sort.h"
#include "homology/similarity_square.h"
#include "homology/tree_rounds.h"
#include "homology/tree_star.h"
#include "homology/tree_steps.h"
#include "matrix/radix_sort.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

// Edges up to which counting beats a radix sort.
constexpr std::size_t kFew = 96;
// The same where more than an eighth of them begin with one digit, which a radix sort is slow with.
constexpr std::size_t kFewAlike = 160;
constexpr int kDigits = 14;

// Vertices up to which the compiler unrolls the vectors of a row.
constexpr std::size_t kMostUnrolled = 2 * kVerticesInWord;

// Vectors of two numbers have too little to compare at once.
constexpr bool kHasSteps = kPackWidth > 2;

// Vertices that tie for the next place, per vertex of the tree, up to which their edges are
// compared one by one.
constexpr std::size_t kTiesPerStep = 2;

// Lines of the next matrix that are asked for with what find_nearest reads at a time and with each
// row that the tree takes: half of all with either, because a processor drops what it is asked for
// faster than memory answers.
constexpr Index kLinesPerRead = kNearestAtOnce * kVectorBytes / Ahead::kLine / 2;
template <class Float, std::size_t kWords>
constexpr Index kLinesPerRow = kWords * kVerticesInWord * sizeof(Float) / Ahead::kLine / 2;

}  // namespace

// The rows of the matrix or, which holds the same pairs, its transpose, and how far they are apart:
// where they lie, or copied where that is not as contiguous numbers of this type.
template <class Float, class Number, class Scalar>
std::pair<const Float*, std::size_t> SpanningTree::contiguous_rows(
    Growth<Float, Number>& growth, const MatrixView<Scalar>& attention) {
  const MatrixView<Scalar> lines = along_memory(attention);
  const auto outer = static_cast<std::size_t>(lines.outerStride());
  const auto inner = static_cast<std::size_t>(lines.innerStride());
  const Scalar* data = lines.data();
  if constexpr (std::is_same_v<Scalar, Float>) {
    if (inner == 1) return {data, outer};
  }
  growth.widened.resize(n_ * stride_);
  for (std::size_t i = 0; i < n_; ++i) {
    Float* to = growth.widened.data() + i * stride_;
    const Scalar* from = data + i * outer;
    for (std::size_t j = 0; j < n_; ++j) to[j] = static_cast<Float>(from[j * inner]);
  }
  return {growth.widened.data(), stride_};
}

// The edges to vertex 0, where they are the tree of the entries below the diagonal; else false.
template <class Float, class Number>
bool SpanningTree::grow_star(Growth<Float, Number>& growth, const Float* rows, std::size_t ld,
                             Ahead& ahead) {
  if (!is_star(rows, n_, ld, growth.found, ahead)) return false;
  grown_.resize(n_ - 1);
  growth.found.resize(n_ - 1);
  for (std::size_t i = 1; i < n_; ++i) {
    grown_[i - 1] = make_edge(static_cast<std::uint32_t>(i), 0);
    growth.found[i - 1] = std::clamp(rows[i * ld], Float(0), Float(1));
  }
  return true;
}

// From the entries below the diagonal. False where one of them is not in [0, 1].
template <class Float, class Number>
bool SpanningTree::grow_in_rounds(Growth<Float, Number>& growth, const Float* rows, std::size_t ld,
                                  Ahead ahead) {
  TreeRounds<Float> rounds(n_, stride_, growth.rounds, components_, ahead);
  if (!rounds.grow(rows, ld)) return false;
  const std::vector<EdgeRank<Float>>& ranks = growth.rounds.tree;
  grown_.resize(ranks.size());
  growth.found.resize(ranks.size());
  for (std::size_t k = 0; k < ranks.size(); ++k) {
    grown_[k] = static_cast<Edge>(ranks[k]);
    growth.found[k] = similarity_of<Float>(ranks[k]);
  }
  return true;
}

template <class Float, class Number>
void SpanningTree::grow_with_ties(Growth<Float, Number>& growth) {
  using Floats = typename VectorOf<Float>::Floats;
  using Numbers = typename VectorOf<Float>::Numbers;
  using Lane = std::remove_reference_t<decltype(Numbers{}[0])>;
  constexpr std::size_t kWidth = kLanes<Float>;
  constexpr Float kInfinity = std::numeric_limits<Float>::infinity();
  const std::size_t width = (n_ + kWidth - 1) / kWidth * kWidth;
  growth.best.assign(width, -kInfinity);
  growth.cap.assign(width, -kInfinity);
  std::fill_n(growth.cap.begin(), n_, kInfinity);
  growth.from.assign(width, std::numeric_limits<Number>::max());
  growth.found.clear();
  grown_.clear();
  Float* best = growth.best.data();
  Float* cap = growth.cap.data();
  Number* from = growth.from.data();
  std::size_t vertex = 0;
  for (std::size_t step = 1; step < n_; ++step) {
    cap[vertex] = -kInfinity;
    best[vertex] = -kInfinity;
    const Float* row = growth.square.data() + vertex * stride_;
    const Numbers self = static_cast<Lane>(vertex) - Numbers{};
    Floats largest = -kInfinity - Floats{};
    for (std::size_t j = 0; j < width; j += kWidth) {
      const Floats limit = vector_at<Floats>(cap + j);
      const Floats read = vector_at<Floats>(row + j);
      const Floats similarity = read < limit ? read : limit;
      const Floats old = vector_at<Floats>(best + j);
      const Numbers other = vector_at<Numbers>(from + j);
      // Of two edges to one vertex the one from the smaller vertex comes first in (row, column).
      const Numbers takes = (similarity > old) | ((similarity == old) & (self < other));
      const Floats better = similarity > old ? similarity : old;
      put(from + j, takes ? self : other);
      put(best + j, better);
      largest = better > largest ? better : largest;
    }
    Float nearest = largest[0];
    for (std::size_t k = 1; k < kWidth; ++k) nearest = std::max(nearest, Float(largest[k]));
    const auto edge_to = [&](std::size_t j) {
      return make_edge(static_cast<std::uint32_t>(j), static_cast<std::uint32_t>(from[j]));
    };
    int places = 0;
    std::size_t next = 0;
    if (nearest == -kInfinity) {
      // Nothing joins what is left. Vertices inside the tree have this similarity too and are
      // passed over.
      Edge first = ~Edge{0};
      for (std::size_t j = 0; j < n_; ++j) {
        if (cap[j] == -kInfinity || edge_to(j) >= first) continue;
        first = edge_to(j);
        next = j;
      }
      grown_.push_back(first);
      growth.found.push_back(nearest);
      vertex = next;
      continue;
    }
    for (std::size_t j = 0; j < width; j += kWidth) {
      // Named, because clang's comparison of doubles gives a vector of another whole number.
      const Numbers equal = vector_at<Floats>(best + j) == nearest;
      const unsigned bits = lane_bits(equal);
      if (bits == 0) continue;
      places += std::popcount(bits);
      next = j + static_cast<std::size_t>(std::countr_zero(bits));
    }
    Edge edge = edge_to(next);
    if (places > 1) {
      for (std::size_t j = 0; j < n_; ++j) {
        if (best[j] != nearest || edge_to(j) >= edge) continue;
        edge = edge_to(j);
        next = j;
      }
    }
    grown_.push_back(edge);
    growth.found.push_back(nearest);
    vertex = next;
  }
}

template <class Float, class Number>
void SpanningTree::sort_edges(const Growth<Float, Number>& growth) {
  const std::size_t count = grown_.size();
  edges_.resize(count);
  lengths_.resize(count);
  if constexpr (std::is_same_v<Float, float>) {
    keys_.resize(count);
    std::uint64_t lowest = ~std::uint64_t{0};
    std::uint64_t union_of_keys = 0;
    for (std::size_t k = 0; k < count; ++k) {
      // The sum makes one of both zeros.
      keys_[k] = std::uint64_t{~ordered_key(growth.found[k] + 0.0f)} << 32 | grown_[k];
      lowest = std::min(lowest, keys_[k]);
      union_of_keys |= keys_[k];
    }
    const int shift =
        std::max(0, static_cast<int>(std::bit_width(union_of_keys - lowest)) - kDigits);
    std::size_t alike = 0;
    for (const std::uint64_t key : keys_) alike += (key - lowest) >> shift == 0 ? 1 : 0;
    if (count <= kFew || (count <= kFewAlike && alike > count / 8)) {
      rank_sort(keys_.data(), count, scratch_, counts_);
    } else {
      scratch_.resize(count);
      radix_sort(
          keys_.data(), scratch_.data(), count, lowest, union_of_keys,
          [](std::uint64_t key) { return key; }, counts_);
    }
    for (std::size_t k = 0; k < count; ++k) {
      edges_[k] = static_cast<Edge>(keys_[k]);
      lengths_[k] =
          static_cast<double>(float_of_key<float>(~static_cast<std::uint32_t>(keys_[k] >> 32)));
    }
  } else {
    order_.resize(count);
    std::iota(order_.begin(), order_.end(), std::uint32_t{0});
    std::ranges::sort(order_, {},
                      [&](std::uint32_t k) { return std::pair(-growth.found[k], grown_[k]); });
    for (std::size_t k = 0; k < count; ++k) {
      edges_[k] = grown_[order_[k]];
      lengths_[k] = growth.found[order_[k]];
    }
  }
}

// Joins every vertex with its nearest neighbour: those that edges join become a ring. Returns how
// many edges that makes, 0 where nothing joins a vertex to another.
template <class Float, class Number>
std::size_t SpanningTree::join_nearest(Growth<Float, Number>& growth) {
  const Number* const nearest = growth.from.data();
  ring_.resize(n_);
  std::iota(ring_.begin(), ring_.end(), std::uint32_t{0});
  Float least = std::numeric_limits<Float>::infinity();
  std::size_t size = 0;
  for (std::size_t i = 0; i < n_; ++i) {
    const auto j = static_cast<std::size_t>(nearest[i]);
    // No branch, because none could be foreseen.
    const bool is_there = j < i && static_cast<std::size_t>(nearest[j]) == i;
    grown_[size] = static_cast<Edge>(std::max(i, j) << 16 | std::min(i, j));
    growth.found[size] = growth.best[i];
    least = std::min(least, growth.best[i]);
    size += is_there ? 0 : 1;
    // Two rings whose vertices change the next one are a ring.
    const std::uint32_t after_i = ring_[i];
    const std::uint32_t after_j = ring_[j];
    ring_[i] = is_there ? after_i : after_j;
    ring_[j] = is_there ? after_j : after_i;
  }
  return least == -std::numeric_limits<Float>::infinity() ? 0 : size;
}

// Joins nearest neighbours and grows the tree from vertex 0 ring by ring, keeping the similarity to
// each vertex outside and not the vertex inside that has it: that one is looked for in the row of
// the vertex that joins, which is read next anyway. False where ties between vertices cost too
// much, or nothing joins what is left.
template <std::size_t kWords, class Float, class Number>
bool SpanningTree::grow_without_ties(Growth<Float, Number>& growth, Ahead ahead) {
  constexpr Float kInfinity = std::numeric_limits<Float>::infinity();
  const std::size_t words = (n_ + kVerticesInWord - 1) / kVerticesInWord;
  growth.best.resize(words * kVerticesInWord);
  growth.from.resize(words * kVerticesInWord);
  growth.cap.resize(words * kVerticesInWord);
  inside_.resize(words);
  for (std::size_t i = 0; i < n_; ++i) growth.square[i * stride_ + i] = -kInfinity;
  growth.found.resize(n_);
  grown_.resize(n_);
  find_nearest(growth.square.data(), n_, stride_, growth.best.data(), growth.from.data(), [&] {
    if constexpr (kWords > 0) ahead.ask(kLinesPerRead);
  });
  std::size_t size = join_nearest(growth);
  if (size == 0) return false;
  TreeSteps<Float, kWords> steps(n_, words, growth.best.data(), growth.cap.data(), inside_.data());
  const auto row_at = [&](std::size_t vertex) { return growth.square.data() + vertex * stride_; };
  const auto row_taken = [&](std::size_t vertex) {
    if constexpr (kWords > 0) ahead.ask(kLinesPerRow<Float, kWords>);
    return row_at(vertex);
  };
  const auto edge_of = [&](std::size_t vertex, Float similarity) {
    const std::size_t other = steps.first_inside(row_at(vertex), similarity);
    // No branch, because none could be foreseen.
    return static_cast<Edge>(std::max(vertex, other) << 16 | std::min(vertex, other));
  };
  std::size_t budget = kTiesPerStep * n_;
  std::size_t vertex = 0;
  for (; size + 1 < n_; ++size) {
    const Float similarity = steps.take(vertex, ring_.data(), row_taken);
    if (similarity == -kInfinity) return false;
    const auto [next, count] = steps.nearest(similarity);
    vertex = next;
    Edge edge = edge_of(next, similarity);
    if (count > 1) {
      if (budget < count) return false;
      budget -= count;
      steps.for_each_nearest(similarity, [&](std::size_t other) {
        const Edge also = edge_of(other, similarity);
        if (also >= edge) return;
        edge = also;
        vertex = other;
      });
    }
    grown_[size] = edge;
    growth.found[size] = similarity;
  }
  growth.found.pop_back();
  grown_.pop_back();
  return true;
}

// From the square, as far as it goes without many ties.
template <class Float, class Number>
bool SpanningTree::grow_in_steps(Growth<Float, Number>& growth, Ahead ahead) {
  if (!kHasSteps) return false;
  if (n_ <= kVerticesInWord) return grow_without_ties<1>(growth, ahead);
  if (n_ <= 2 * kVerticesInWord) return grow_without_ties<2>(growth, ahead);
  return grow_without_ties<0>(growth, ahead);
}

// From rows that are `ld` apart; `lower`: every entry above the diagonal is 0; `takes_larger`: of
// two entries the larger counts.
template <class Float, class Number, class Combine>
void SpanningTree::grow(Growth<Float, Number>& growth, const Float* rows, std::size_t ld,
                        bool lower, bool takes_larger, Combine combine, Ahead ahead) {
  const bool reads_rows = lower && takes_larger;
  // Steps whose vectors stay in registers are faster than rounds.
  const bool is_small = kHasSteps && n_ <= kMostUnrolled;
  // A larger map's star is read as fast as memory gives it, and the next one would come in between.
  Ahead none;
  if (reads_rows && grow_star(growth, rows, ld, is_small ? ahead : none)) return;
  if (reads_rows && !is_small && grow_in_rounds(growth, rows, ld, ahead)) return;
  // Beyond n whole tiles hold what no vertex outside reads.
  growth.square.resize(round_to_tiles(n_) * stride_ + kVerticesInWord);
  fill_similarity_square(rows, n_, ld, lower, stride_, combine, growth.square.data());
  if (grow_in_steps(growth, ahead)) return;
  if (reads_rows && is_small && grow_in_rounds(growth, rows, ld, Ahead{})) return;
  grow_with_ties(growth);
}

template <class Scalar>
void SpanningTree::assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric,
                          bool causal, Ahead ahead) {
  n_ = static_cast<std::size_t>(attention.rows());
  stride_ = square_stride(n_);
  if (metric == Metric::hellinger) {
    wide_.square.assign(n_ * stride_ + kVerticesInWord, 0.0);
    hellinger_rows(attention, roots_, [this](Index i, Index j, double distance) {
      const auto row = static_cast<std::size_t>(i), column = static_cast<std::size_t>(j);
      wide_.square[row * stride_ + column] = wide_.square[column * stride_ + row] = -distance;
    });
    if (!grow_in_steps(wide_, ahead)) grow_with_ties(wide_);
    sort_edges(wide_);
  } else {
    const bool takes_larger = metric == Metric::attention && symmetrize == Symmetrize::max;
    with_similarity<Scalar>(symmetrize, metric, [&]<class Float>(Float zero, auto similarity) {
      auto& of_worker = growth(zero);
      const auto [rows, ld] = contiguous_rows(of_worker, attention);
      // Whose lines are columns has its zeros below the diagonal of what is read.
      const bool lower = causal && lines_are_rows(attention);
      grow(of_worker, rows, ld, lower, takes_larger, similarity, ahead);
      sort_edges(of_worker);
    });
  }
  const double least = metric == Metric::attention ? 1.0 : 0.0;
  for (double& length : lengths_) length = least - length;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                             \
  template void SpanningTree::assign<Scalar>(const MatrixView<Scalar>&, Symmetrize, Metric, bool, \
                                             Ahead);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
