// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "homology/edge_order.h"
#include "homology/tree_scratch.h"

namespace attnscope {

// The minimum spanning tree of the dense graph whose edges EdgeOrder puts in order: no edge outside
// the tree is ever sorted. Ties are decided as that order decides them, by (row, column). A causal
// map in which the first key is nearest to all is read once and is a star; large causal maps grow
// by Borůvka's rounds, which read them where they lie; others by Prim's algorithm, from a square of
// similarities, and takes the vertices at once that nearest neighbours join. Scratch is kept from
// matrix to matrix.
class SpanningTree {
 public:
  // Reads a matrix of n >= 2 rows; `causal`: it is known to be causal, which false does not deny;
  // `ahead` is the memory of the next one. Cost O(n²) in vector passes, with hellinger O(n³).
  template <class Scalar>
  void assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric,
              bool causal = false, Ahead ahead = {});

  // The n − 1 edges, from near to far.
  const std::vector<Edge>& edges() const { return edges_; }
  // The dissimilarity of edge `index` of edges(): 1.0 − double(w), or the distance.
  double dissimilarity(std::uint32_t index) const { return lengths_[index]; }

 private:
  // Everything whose type depends on the width of a weight.
  template <class Float, class Number>
  struct Growth {
    // Vectors of a row lie within one cache line.
    template <class T>
    using Rows = std::vector<T, Eigen::aligned_allocator<T>>;

    Rows<Float> widened;       // the matrix, where it is not contiguous rows of this type
    Rows<Float> square;        // similarities of all pairs, rows stride_ apart
    Rows<Float> best;          // the largest from the tree to each vertex outside; −∞ inside
    Rows<Float> cap;           // ∞ outside, −∞ inside
    Rows<Number> from;         // the vertex of the tree that has it, the smallest on ties
    std::vector<Float> found;  // similarity of each edge of the tree
    TreeScratch<Float> rounds;
  };

  Growth<float, std::int32_t>& growth(float) { return narrow_; }
  Growth<double, std::int64_t>& growth(double) { return wide_; }
  template <class Float, class Number, class Scalar>
  std::pair<const Float*, std::size_t> contiguous_rows(Growth<Float, Number>& growth,
                                                       const MatrixView<Scalar>& attention);
  template <class Float, class Number>
  bool grow_star(Growth<Float, Number>& growth, const Float* rows, std::size_t ld, Ahead& ahead);
  template <class Float, class Number>
  bool grow_in_rounds(Growth<Float, Number>& growth, const Float* rows, std::size_t ld,
                      Ahead ahead);
  template <class Float, class Number>
  std::size_t join_nearest(Growth<Float, Number>& growth);
  template <class Float, class Number>
  bool grow_in_steps(Growth<Float, Number>& growth, Ahead ahead);
  template <class Float, class Number, class Combine>
  void grow(Growth<Float, Number>& growth, const Float* rows, std::size_t ld, bool lower,
            bool takes_larger, Combine combine, Ahead ahead);
  template <std::size_t kWords, class Float, class Number>
  bool grow_without_ties(Growth<Float, Number>& growth, Ahead ahead);
  template <class Float, class Number>
  void grow_with_ties(Growth<Float, Number>& growth);
  template <class Float, class Number>
  void sort_edges(const Growth<Float, Number>& growth);

  std::size_t n_ = 0;
  std::size_t stride_ = 0;
  Growth<float, std::int32_t> narrow_;
  Growth<double, std::int64_t> wide_;
  ComponentScratch components_;
  std::vector<double> roots_;
  std::vector<std::uint32_t> ring_;    // of each vertex the next of those that edges join so far
  std::vector<std::uint64_t> inside_;  // bits of the vertices of the tree
  std::vector<Edge> grown_;            // in the order of growth
  std::vector<std::uint64_t> keys_;
  std::vector<std::uint64_t> scratch_;
  std::vector<std::uint32_t> counts_;
  std::vector<std::uint32_t> order_;
  std::vector<Edge> edges_;
  std::vector<double> lengths_;
};

}  // namespace attnscope
