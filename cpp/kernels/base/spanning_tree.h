// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/base/edge.h"

namespace attnscope {

// The minimum spanning tree of a dense graph by Prim's algorithm, without sorting its edges.
//
// It decides by keys alone, so where two keys tie the tree may not be the one that the order of edges
// gives, and assign() says so. Cost O(n²), in vectorisable passes.
template <class Key>
class SpanningTree {
 public:
  // `triangle`: keys of the lower triangle of `count` >= 2 vertices, row by row. False when a tie had to be decided.
  bool assign(const std::vector<Key>& triangle, Index count);
  // After a true assign(): the count − 1 edges, in the order in which they were found.
  const std::vector<Edge>& edges() const { return edges_; }

 private:
  void mirror(const std::vector<Key>& triangle);

  std::size_t n_ = 0;
  std::size_t stride_ = 0;
  std::vector<Key> square_;  // the whole symmetric matrix; its diagonal is never read as an edge
  std::vector<Key> best_;    // key of the best edge from the tree to each vertex outside
  std::vector<Key> inside_;  // all ones where a vertex is in the tree
  std::vector<Key> from_;    // the other end of that edge
  std::vector<Edge> edges_;
};

}  // namespace attnscope
