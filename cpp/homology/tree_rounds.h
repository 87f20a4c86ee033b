// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "homology/edge_lanes.h"
#include "homology/tree_scratch.h"

// Borůvka's rounds over rows of similarities. Only kernel sources include it.
namespace attnscope {

// Rows that are read side by side, so that what is stored for each column is stored once for all.
template <class Float>
constexpr std::size_t kSideBySide = kLanes<Float> < 4 ? kLanes<Float> : 4;

// The minimum spanning tree of n vertices: the rounds leave the ranks of its edges, in the order of
// growth, in scratch.tree. Every component takes the edge to its nearest neighbour, and rows of the
// vertices of one component become one row, so that each round reads half of what the one before
// did, or less.
template <class Float>
class TreeRounds {
 public:
  TreeRounds(std::size_t n, std::size_t stride, TreeScratch<Float>& scratch,
             ComponentScratch& components, Ahead ahead)
      : n_(n),
        stride_(stride),
        width_((n + kWidth - 1) / kWidth * kWidth),
        count_(n),
        scratch_(scratch),
        components_(components),
        ahead_(ahead) {
    scratch.component.resize(width_);
    std::iota(scratch.component.begin(), scratch.component.end(), Number{0});
    scratch.nearest.resize(n);
    scratch.tree.clear();
  }

  // From the entries below the diagonal, rows `ld` apart. False, and nothing is known, where
  // one of them is not in [0, 1].
  bool grow(const Float* rows, std::size_t ld) {
    if (!link_vertices(rows, ld)) return false;
    join_nearest();
    if (count_ == 1) return true;
    merge_vertices(rows, ld);
    for (;;) {
      link_components();
      join_nearest();
      if (count_ == 1) return true;
      merge_components();
    }
  }

 private:
  using Number = typename TreeScratch<Float>::Number;
  using Lanes = EdgeLanes<Float>;
  using Floats = typename Lanes::Floats;
  using Numbers = typename Lanes::Numbers;
  using Lane = typename Lanes::Lane;
  static constexpr std::size_t kWidth = kLanes<Float>;
  static constexpr Float kInfinity = std::numeric_limits<Float>::infinity();

  void clear_columns() {
    scratch_.column_best.assign(width_, -kInfinity);
    scratch_.column_edge.assign(width_, std::numeric_limits<Number>::max());
  }

  // The nearest neighbour of every vertex. Each entry is read once: for the vertex of its row, and
  // for that of its column.
  bool link_vertices(const Float* rows, std::size_t ld) {
    scratch_.diagonal.resize(n_ * kWidth);
    clear_columns();
    Floats lowest{};
    Floats highest{};
    std::size_t i = 0;
    constexpr std::size_t kRows = kSideBySide<Float>;
    for (; i + kRows <= n_; i += kRows) link_rows<kRows>(rows, ld, i, lowest, highest);
    for (; i < n_; ++i) link_rows<1>(rows, ld, i, lowest, highest);
    if (largest_lane(highest) > Float(1) || largest_lane(-lowest) > Float(0)) return false;
    take_columns();
    return true;
  }

  // The same of the rows [first, first + rows_at_once), for the columns as far as these rows go.
  template <std::size_t rows_at_once>
  void link_rows(const Float* rows, std::size_t ld, std::size_t first, Floats& lowest,
                 Floats& highest) {
    Float* const column_best = scratch_.column_best.data();
    Number* const column_edge = scratch_.column_edge.data();
    Lanes nearest[rows_at_once];
    Floats least = lowest;  // in a register
    ahead_.ask(static_cast<Index>(rows_at_once * n_ * sizeof(Float)) / Ahead::kLine);
    const auto take_block = [&](std::size_t j, auto similarities, auto edges) {
      Lanes column{vector_at<Floats>(column_best + j), vector_at<Numbers>(column_edge + j)};
#pragma GCC unroll 4
      for (std::size_t k = 0; k < rows_at_once; ++k) {
        const Floats similarity = similarities(k);
        const Numbers edge = edges(k);
        nearest[k].take_later(similarity, edge);
        column.take_later(similarity, edge);
      }
      put(column_best + j, column.similarity);
      put(column_edge + j, column.edge);
    };
    const std::size_t diagonal = block_of<Float>(first);
    const auto below = [&](std::size_t j) {
      return [=, columns = Lanes::columns(j)](std::size_t k) {
        return Lanes::edges_below(first + k, columns);
      };
    };
    for (std::size_t j = 0; j < diagonal; j += kWidth) {
      const auto read = [&](std::size_t k) {
        const Floats similarity = vector_at<Floats>(rows + (first + k) * ld + j);
        least = similarity < least ? similarity : least;
        return similarity;
      };
      take_block(j, read, below(j));
    }
    Float* const copies = scratch_.diagonal.data() + first * kWidth;
    for (std::size_t k = 0; k < rows_at_once; ++k) {
      const Floats entries =
          copy_diagonal(rows + (first + k) * ld + diagonal, first + k, copies + k * kWidth);
      least = entries < least ? entries : least;
    }
    lowest = least;
    take_block(
        diagonal, [&](std::size_t k) { return vector_at<Floats>(copies + k * kWidth); },
        [&](std::size_t k) { return Lanes::edges_at_diagonal(first + k); });
    for (std::size_t k = 0; k < rows_at_once; ++k) {
      highest = nearest[k].similarity > highest ? nearest[k].similarity : highest;
      scratch_.nearest[first + k] = nearest[k].nearest();
    }
  }

  // Copies the vector of row i that its diagonal lies in, with −∞ for what is not below that;
  // returns it with 0 there.
  Floats copy_diagonal(const Float* from, std::size_t i, Float* to) const {
    const std::size_t first = block_of<Float>(i);
    alignas(64) Float last[kWidth] = {};
    if (first + kWidth > n_) {  // whose end is not in the row
      std::copy(from, from + (i - first), last);
      from = last;
    }
    const Numbers is_below = Lanes::columns(first) < static_cast<Lane>(i) - Numbers{};
    const Floats read = vector_at<Floats>(from);
    put(to, is_below ? read : -kInfinity - Floats{});
    return is_below ? read : Floats{};
  }

  // Lets the component of each column's vertex take the column's best where that is nearer.
  void take_columns() {
    for (std::size_t j = 0; j < n_; ++j) {
      EdgeRank<Float>& nearest = scratch_.nearest[static_cast<std::size_t>(scratch_.component[j])];
      const Edge edge = Lanes::edge_of(static_cast<Lane>(scratch_.column_edge[j]));
      nearest = std::min(nearest, rank_of(scratch_.column_best[j], edge));
    }
  }

  // Adds the edge from every component to its nearest neighbour to the tree and numbers the
  // components that this makes, by their first old ones. No two edges have one rank, so the only
  // circles are two components that are each other's nearest neighbours.
  void join_nearest() {
    const Number* const component = scratch_.component.data();
    ComponentScratch& work = components_;
    work.neighbour.resize(count_);
    work.parent.resize(count_);
    for (std::size_t a = 0; a < count_; ++a) {
      const auto edge = static_cast<Edge>(scratch_.nearest[a]);
      const auto ends = static_cast<std::uint32_t>(component[edge_row(edge)]) ^
                        static_cast<std::uint32_t>(component[edge_column(edge)]);
      work.neighbour[a] = ends ^ static_cast<std::uint32_t>(a);
    }
    std::size_t size = scratch_.tree.size();
    scratch_.tree.resize(size + count_);
    for (std::size_t a = 0; a < count_; ++a) {
      const auto self = static_cast<std::uint32_t>(a);
      const std::uint32_t other = work.neighbour[a];
      const bool is_mutual = work.neighbour[other] == self;
      work.parent[a] = is_mutual ? std::min(self, other) : other;
      scratch_.tree[size] = scratch_.nearest[a];
      size += is_mutual && other < self ? 0 : 1;
    }
    scratch_.tree.resize(size);
    find_roots();
    number_components();
    Number* const joined = scratch_.component.data();
    for (std::size_t j = 0; j < n_; ++j)
      joined[j] = static_cast<Number>(work.joined[static_cast<std::size_t>(joined[j])]);
  }

  // Makes every component's parent the root above it, half of the way at a time.
  void find_roots() {
    std::uint32_t* const parent = components_.parent.data();
    for (std::uint32_t moved = 1; moved != 0;) {
      moved = 0;
      for (std::size_t a = 0; a < count_; ++a) {
        const std::uint32_t above = parent[parent[a]];
        moved |= above ^ parent[a];
        parent[a] = above;
      }
    }
  }

  void number_components() {
    constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
    ComponentScratch& work = components_;
    work.number.assign(count_, kNone);
    work.joined.resize(count_);
    work.begin.assign(count_ + 1, 0);
    std::uint32_t count = 0;
    for (std::size_t a = 0; a < count_; ++a) {
      std::uint32_t& number = work.number[work.parent[a]];
      const bool is_new = number == kNone;
      const std::uint32_t joined = is_new ? count : number;
      number = joined;
      work.joined[a] = joined;
      count += is_new ? 1 : 0;
      ++work.begin[joined + 1];
    }
    work.begin.resize(count + 1);
    std::partial_sum(work.begin.begin(), work.begin.end(), work.begin.begin());
    work.members.resize(count_);
    work.place.assign(work.begin.begin(), work.begin.end());
    for (std::size_t a = 0; a < count_; ++a)
      work.members[work.place[work.joined[a]]++] = static_cast<std::uint32_t>(a);
    count_ = count;
  }

  // The rows of the vertices of each component as one row, with −∞ where none has an entry.
  void merge_vertices(const Float* rows, std::size_t ld) {
    scratch_.merged.resize(count_ * stride_);
    scratch_.edge.resize(count_ * stride_);
    for (std::size_t a = 0; a < count_; ++a) {
      Float* const best = scratch_.merged.data() + a * stride_;
      Number* const edge = scratch_.edge.data() + a * stride_;
      const std::size_t begin = components_.begin[a];
      const std::size_t first = components_.members[begin];
      const std::size_t diagonal = block_of<Float>(first);
      std::memcpy(best, rows + first * ld, diagonal * sizeof(Float));
      for (std::size_t j = 0; j < diagonal; j += kWidth)
        put(edge + j, Lanes::edges_below(first, Lanes::columns(j)));
      put(best + diagonal, diagonal_of(first));
      put(edge + diagonal, Lanes::edges_at_diagonal(first));
      for (std::size_t j = diagonal + kWidth; j < width_; j += kWidth) {
        put(best + j, -kInfinity - Floats{});
        put(edge + j, Lanes::kLast - Numbers{});
      }
      for (std::size_t k = begin + 1; k < components_.begin[a + 1]; ++k) {
        const std::size_t i = components_.members[k];
        const auto take = [&](std::size_t j, Floats similarity, Numbers edges) {
          // Vertices come in order, and so do their edges with one vertex.
          Lanes nearest{vector_at<Floats>(best + j), vector_at<Numbers>(edge + j)};
          nearest.take_later(similarity, edges);
          put(best + j, nearest.similarity);
          put(edge + j, nearest.edge);
        };
        const std::size_t end = block_of<Float>(i);
        for (std::size_t j = 0; j < end; j += kWidth)
          take(j, vector_at<Floats>(rows + i * ld + j), Lanes::edges_below(i, Lanes::columns(j)));
        take(end, diagonal_of(i), Lanes::edges_at_diagonal(i));
      }
    }
  }

  Floats diagonal_of(std::size_t i) const {
    return vector_at<Floats>(scratch_.diagonal.data() + i * kWidth);
  }

  // The same of components of components, in place: no component's members stand before it.
  void merge_components() {
    Float* const merged = scratch_.merged.data();
    Number* const edges = scratch_.edge.data();
    for (std::size_t a = 0; a < count_; ++a) {
      const std::size_t begin = components_.begin[a];
      const std::size_t first = components_.members[begin];
      Float* const best = merged + a * stride_;
      Number* const edge = edges + a * stride_;
      if (first != a) {
        std::memcpy(best, merged + first * stride_, width_ * sizeof(Float));
        std::memcpy(edge, edges + first * stride_, width_ * sizeof(Number));
      }
      for (std::size_t k = begin + 1; k < components_.begin[a + 1]; ++k) {
        const std::size_t row = components_.members[k] * stride_;
        for (std::size_t j = 0; j < width_; j += kWidth) {
          Lanes nearest{vector_at<Floats>(best + j), vector_at<Numbers>(edge + j)};
          nearest.take(vector_at<Floats>(merged + row + j), vector_at<Numbers>(edges + row + j));
          put(best + j, nearest.similarity);
          put(edge + j, nearest.edge);
        }
      }
    }
  }

  // The nearest neighbour of every component. A row holds only pairs with smaller vertices; the
  // others are looked for in the columns.
  void link_components() {
    const Number* const component = scratch_.component.data();
    Float* const column_best = scratch_.column_best.data();
    Number* const column_edge = scratch_.column_edge.data();
    clear_columns();
    for (std::size_t a = 0; a < count_; ++a) {
      const Float* const row = scratch_.merged.data() + a * stride_;
      const Number* const edge = scratch_.edge.data() + a * stride_;
      const Numbers self = static_cast<Lane>(a) - Numbers{};
      Lanes nearest;
      for (std::size_t j = 0; j < width_; j += kWidth) {
        const Numbers is_inside = vector_at<Numbers>(component + j) == self;
        const Floats read = vector_at<Floats>(row + j);
        const Floats similarity = is_inside ? -kInfinity - Floats{} : read;
        const Numbers edges = vector_at<Numbers>(edge + j);
        const Numbers outside = is_inside ? Lanes::kLast - Numbers{} : edges;
        nearest.take(similarity, outside);
        Lanes column{vector_at<Floats>(column_best + j), vector_at<Numbers>(column_edge + j)};
        column.take(similarity, outside);
        put(column_best + j, column.similarity);
        put(column_edge + j, column.edge);
      }
      scratch_.nearest[a] = nearest.nearest();
    }
    take_columns();
  }

  std::size_t n_;
  std::size_t stride_;
  std::size_t width_;  // n_ in whole vectors
  std::size_t count_;  // of components so far
  TreeScratch<Float>& scratch_;
  ComponentScratch& components_;
  Ahead ahead_;
};

}  // namespace attnscope
