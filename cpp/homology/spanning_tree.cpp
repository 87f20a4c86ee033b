// SPDX-License-Identifier: MIT
#include "homology/spanning_tree.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "homology/edge_order.h"
#include "homology/similarity_square.h"
#include "homology/tree_rounds.h"
#include "matrix/radix_sort.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

// Edges up to which counting beats a radix sort.
constexpr std::size_t kFew = 96;

// Entries that are compared with one number in one go, so that a word holds the answers.
constexpr std::size_t kBlockVectors = 4;
template <class Float>
constexpr std::size_t kBlock = kBlockVectors * kLanes<Float>;

// Vertices that tie for the next place, per vertex of the tree, up to which their edges are
// compared one by one.
constexpr std::size_t kTiesPerStep = 2;

// Sorts few numbers by counting those below each, which has no branches to guess.
void rank_sort(std::uint64_t* keys, std::size_t count, std::vector<std::uint64_t>& scratch) {
  constexpr std::size_t kWidth = kLanes<double>;
  constexpr auto kSign = std::uint64_t{1} << 63;
  const std::size_t padded = (count + kWidth - 1) / kWidth * kWidth;
  scratch.resize(padded);
  for (std::size_t k = 0; k < count; ++k) scratch[k] = keys[k] ^ kSign;
  std::fill(scratch.begin() + static_cast<std::ptrdiff_t>(count), scratch.end(), ~kSign);
  for (std::size_t k = 0; k < count; ++k) {
    const LongVector own = static_cast<long>(scratch[k]) - LongVector{};
    LongVector below{};
    for (std::size_t j = 0; j < padded; j += kWidth) {
      below += vector_at<LongVector>(scratch.data() + j) < own;  // −1 where it is
    }
    std::int64_t rank = 0;
    for (std::size_t lane = 0; lane < kWidth; ++lane) rank -= below[lane];
    keys[rank] = scratch[k] ^ kSign;
  }
}

// best = min(max(best, row), cap) of `width` entries, and the largest of them.
template <class Float>
Float raise_to_row(const Float* row, const Float* cap, std::size_t width, Float* best) {
  using Floats = typename VectorOf<Float>::Floats;
  Floats tops[kBlockVectors];
  for (Floats& top : tops) top = -std::numeric_limits<Float>::infinity() - Floats{};
  for (std::size_t j = 0; j < width; j += kBlock<Float>) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kBlockVectors; ++k) {
      const std::size_t at = j + k * kLanes<Float>;
      const Floats old = vector_at<Floats>(best + at), read = vector_at<Floats>(row + at);
      const Floats limit = vector_at<Floats>(cap + at);
      const Floats better = read > old ? read : old;
      const Floats outside = better < limit ? better : limit;
      put(best + at, outside);
      tops[k] = outside > tops[k] ? outside : tops[k];
    }
  }
  const Floats low = tops[0] > tops[1] ? tops[0] : tops[1];
  const Floats high = tops[2] > tops[3] ? tops[2] : tops[3];
  return largest_lane(low > high ? low : high);
}

// The first of `width` entries that equal `value`, which some do, and how many do. Without a branch
// for each block, because none could be foreseen.
struct Places {
  std::size_t first;
  std::size_t count;
};
template <class Float>
Places find_equal(const Float* x, std::size_t width, Float value) {
  using Floats = typename VectorOf<Float>::Floats;
  Places places{0, 0};
  for (std::size_t j = width; j > 0;) {
    j -= kBlock<Float>;
    std::uint64_t bits = 0;
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kBlockVectors; ++k) {
      const std::size_t at = k * kLanes<Float>;
      bits |= std::uint64_t{equal_bits(vector_at<Floats>(x + j + at), value - Floats{})} << at;
    }
    places.count += static_cast<std::size_t>(std::popcount(bits));
    const std::size_t place = j + static_cast<std::size_t>(std::countr_zero(bits));
    places.first = bits != 0 ? place : places.first;
  }
  return places;
}

// The edge from `vertex` to the first vertex inside the tree, where `cap` is below 0, whose entry
// in the row is `value`; there is one.
template <class Float>
Edge edge_into(const Float* row, const Float* cap, std::size_t width, Float value,
               std::size_t vertex) {
  using Floats = typename VectorOf<Float>::Floats;
  std::uint64_t from = ~std::uint64_t{0};
  for (std::size_t j = 0; j < width; j += kBlock<Float>) {
    std::uint64_t bits = 0;
#pragma GCC unroll 4
    for (std::size_t k = 0; k < kBlockVectors; ++k) {
      const std::size_t at = k * kLanes<Float>;
      const std::uint64_t equal = equal_bits(vector_at<Floats>(row + j + at), value - Floats{},
                                             vector_at<Floats>(cap + j + at));
      bits |= equal << at;
    }
    // A block without one counts as far off.
    const auto place = static_cast<std::uint64_t>(j) + std::countr_zero(bits);
    from = std::min(from, place | std::uint64_t{bits == 0} << 32);
  }
  const auto a = static_cast<std::uint32_t>(vertex), b = static_cast<std::uint32_t>(from);
  return std::max(a, b) << 16 | std::min(a, b);
}

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
    std::uint64_t ones = 0;
    for (std::size_t k = 0; k < count; ++k) {
      // The sum makes one of both zeros.
      keys_[k] = std::uint64_t{~ordered_key(growth.found[k] + 0.0f)} << 32 | grown_[k];
      lowest = std::min(lowest, keys_[k]);
      ones |= keys_[k];
    }
    if (count <= kFew) {
      rank_sort(keys_.data(), count, scratch_);
    } else {
      scratch_.resize(count);
      radix_sort(
          keys_.data(), scratch_.data(), count, lowest, ones, [](std::uint64_t key) { return key; },
          counts_);
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

// Grows the tree from vertex 0, keeping the similarity to each vertex outside and not the vertex
// inside that has it: that one is looked for in the row of the vertex that joins, which is read
// next anyway. False where ties between vertices cost too much, or nothing joins what is left.
template <class Float, class Number>
bool SpanningTree::grow_without_ties(Growth<Float, Number>& growth) {
  using Floats = typename VectorOf<Float>::Floats;
  using Numbers = typename VectorOf<Float>::Numbers;
  using Lane = std::remove_reference_t<decltype(Numbers{}[0])>;
  constexpr std::size_t kWidth = kLanes<Float>;
  constexpr Float kInfinity = std::numeric_limits<Float>::infinity();
  const std::size_t width = (n_ + kBlock<Float> - 1) / kBlock<Float> * kBlock<Float>;
  growth.best.assign(width, -kInfinity);
  growth.cap.assign(width, -kInfinity);
  std::fill_n(growth.cap.begin(), n_, kInfinity);
  growth.found.clear();
  grown_.clear();
  Float* best = growth.best.data();
  Float* cap = growth.cap.data();
  const auto row_at = [&](std::size_t vertex) { return growth.square.data() + vertex * stride_; };
  Numbers lane;
  for (std::size_t k = 0; k < kWidth; ++k) lane[k] = static_cast<Lane>(k);
  std::size_t budget = kTiesPerStep * n_;
  std::size_t vertex = 0;
  for (std::size_t step = 1; step < n_; ++step) {
    // Written as a whole vector, because a narrower store would hold up the reads that follow.
    const std::size_t first = vertex / kWidth * kWidth;
    const Numbers joins = lane == static_cast<Lane>(vertex - first);
    put(cap + first, joins ? -kInfinity - Floats{} : vector_at<Floats>(cap + first));
    const Float nearest = raise_to_row(row_at(vertex), cap, width, best);
    if (nearest == -kInfinity) return false;
    auto [next, places] = find_equal(best, width, nearest);
    Edge edge = edge_into(row_at(next), cap, width, nearest, next);
    if (places > 1) {
      if (budget < places) return false;
      budget -= places;
      for (std::size_t j = next + 1; j < n_; ++j) {
        if (best[j] != nearest) continue;
        const Edge other = edge_into(row_at(j), cap, width, nearest, j);
        if (other >= edge) continue;
        edge = other;
        next = j;
      }
    }
    grown_.push_back(edge);
    growth.found.push_back(nearest);
    vertex = next;
  }
  return true;
}

template <class Float, class Number>
void SpanningTree::grow(Growth<Float, Number>& growth) {
  // Vectors of two numbers have too little to compare at once.
  const bool is_grown = kPackWidth > 2 && grow_without_ties(growth);
  if (!is_grown) grow_with_ties(growth);
}

template <class Scalar>
void SpanningTree::assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric,
                          bool causal, Ahead ahead) {
  n_ = static_cast<std::size_t>(attention.rows());
  stride_ = square_stride(n_);
  if (metric == Metric::hellinger) {
    wide_.square.assign(n_ * stride_ + kBlock<double>, 0.0);
    hellinger_rows(attention, roots_, [this](Index i, Index j, double distance) {
      const auto row = static_cast<std::size_t>(i), column = static_cast<std::size_t>(j);
      wide_.square[row * stride_ + column] = wide_.square[column * stride_ + row] = -distance;
    });
    grow(wide_);
    sort_edges(wide_);
  } else {
    const bool takes_larger = metric == Metric::attention && symmetrize == Symmetrize::max;
    with_similarity<Scalar>(symmetrize, metric, [&]<class Float>(Float zero, auto similarity) {
      auto& own = growth(zero);
      const auto [rows, ld] = contiguous_rows(own, attention);
      // Whose lines are columns has its zeros below the diagonal of what is read.
      const bool lower = causal && lines_are_rows(attention);
      if (!lower || !takes_larger || !grow_in_rounds(own, rows, ld, ahead)) {
        // Beyond n whole tiles hold what no vertex outside reads.
        own.square.resize(round_to_tiles(n_) * stride_ + kBlock<Float>);
        fill_similarity_square(rows, n_, ld, lower, stride_, similarity, own.square.data());
        grow(own);
      }
      sort_edges(own);
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
