// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/matrix_view.h"
#include "kernels/laplacian.h"

// The edges of a dense weighted graph in the order in which a Rips filtration takes them in.
namespace attnscope {

// An edge is written as two vertices, the row above the column: row << 16 | column, row > column.
using Edge = std::uint32_t;
inline constexpr Index kMaxVertices = 65535;
inline std::uint32_t edge_row(Edge edge) { return edge >> 16; }
inline std::uint32_t edge_column(Edge edge) { return edge & 0xffffu; }

// What makes two tokens close. `attention`: 1 − w, w_ij = max, mean or min of A_ij and A_ji, never above
// 1; `hellinger`: ‖√a_i − √a_j‖/√2 between rows, negative entries counting as 0.
enum class Metric { attention, hellinger };

// The edges of one matrix up to its enclosing radius r = min_i max_j d_ij, from near to far, ties by
// (row, column). From r on one vertex is joined to all others, so no later edge can matter. The order is
// that of the weights in the input's own precision (1 − w in float32 would lose most of it); means and
// Hellinger distances are formed in float64. Scratch is kept from matrix to matrix.
class EdgeOrder {
 public:
  // Cost O(n²), with hellinger O(n³).
  template <class Scalar>
  void assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric);

  // The edges, at most n(n−1)/2; empty when n = 1.
  const std::vector<Edge>& edges() const { return edges_; }
  // Index of the first edge at the enclosing radius itself.
  std::uint32_t radius_begin() const { return radius_begin_; }
  // The dissimilarity of edge `index`, 1.0 − double(w) or the Hellinger distance.
  double dissimilarity(std::uint32_t index) const;
  // All vertices, the best connected first.
  const std::vector<std::uint16_t>& vertices() const { return vertices_; }

 private:
  struct Wide {
    std::uint64_t key;
    std::uint64_t edge;
    bool operator<(const Wide& other) const {
      return key != other.key ? key < other.key : edge < other.edge;
    }
  };
  // Keys of one width: the lower triangle row by row, and per vertex the largest key.
  template <class Key>
  struct Keys {
    std::vector<Key> triangle;
    std::vector<Key> farthest;
    std::vector<Key> row;
    std::vector<Key> columns;
  };

  template <class Key>
  Keys<Key>& keys();
  template <class Key, class Scalar, class Combine>
  void fill(const MatrixView<Scalar>& attention, Combine combine);
  template <class Scalar>
  void fill_hellinger(const MatrixView<Scalar>& attention);
  template <class Key>
  void take_row(Index row, const Key* keys);
  template <class Key, class Entry>
  void sort(std::vector<Entry>& entries);

  Index n_ = 0;
  bool wide_ = false;
  Metric metric_ = Metric::attention;
  Keys<std::uint32_t> narrow_keys_;
  Keys<std::uint64_t> wide_keys_;
  std::vector<std::uint64_t> narrow_;  // key << 32 | edge
  std::vector<Wide> wide_entries_;
  std::vector<std::uint32_t> buckets_;
  std::vector<double> roots_;
  std::vector<std::uint32_t> remoteness_;
  std::vector<std::uint16_t> vertices_;
  std::vector<Edge> edges_;
  std::uint32_t radius_begin_ = 0;
};

}  // namespace attnscope
