// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "graphs/graph_options.h"
#include "matrix/matrix_view.h"

// The edges of a dense weighted graph in the order in which a Rips filtration takes them in.
namespace attnscope {

// An edge is written as two vertices, the row above the column: row << 16 | column, row > column.
using Edge = std::uint32_t;
inline constexpr Index kMaxVertices = 65535;
inline std::uint32_t edge_row(Edge edge) { return edge >> 16; }
inline std::uint32_t edge_column(Edge edge) { return edge & 0xffffu; }
inline Edge make_edge(std::uint32_t a, std::uint32_t b) {
  return a > b ? a << 16 | b : b << 16 | a;
}

// What makes two tokens close. `attention`: 1 − w, w_ij = max, mean or min of A_ij and A_ji, never
// above 1; `hellinger`: ‖√a_i − √a_j‖/√2 between rows, negative entries counting as 0; `distance`:
// w itself, the matrix holding distances of points, none below 0.
enum class Metric { attention, hellinger, distance };

// Calls visit(Float{}, similarity): similarity(a, b) is how close two tokens are whose entries are
// a and b, numbers or vectors of the type that decides which of two pairs is closer. Not for
// `hellinger`.
template <class Scalar, class Visit>
void with_similarity(Symmetrize symmetrize, Metric metric, Visit&& visit) {
  constexpr Wide<Scalar> kOwn{};
  if (metric == Metric::distance) {
    visit(kOwn, [](auto a, auto b) { return -(a > b ? a : b); });
  } else if (symmetrize == Symmetrize::mean) {
    visit(0.0, [](auto a, auto b) { return 0.5 * (a + b); });
  } else if (symmetrize == Symmetrize::max) {
    visit(kOwn, [](auto a, auto b) { return a > b ? a : b; });
  } else {
    visit(kOwn, [](auto a, auto b) { return a < b ? a : b; });
  }
}

// The edges of one matrix up to its enclosing radius r = min_i max_j d_ij, from near to far, ties
// by (row, column). From r on one vertex is joined to all others, so no later edge can matter. The
// order is that of the weights or distances in the input's own precision (1 − w in float32 would
// lose most of it); means and Hellinger distances are formed in float64.
//
// Edges come in batches, each sorted when it is asked for, because most filtrations have nothing
// left to tell long before r. Scratch is kept from matrix to matrix.
class EdgeOrder {
 public:
  // Reads the matrix, ranks the vertices and looks where the keys lie; `causal`: it is known to be
  // causal, which false does not deny. Cost O(n²), with hellinger O(n³).
  template <class Scalar>
  void assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric,
              bool causal = false);

  // Appends the next batch to edges(); false when all edges up to r are there.
  bool next();

  // The edges so far.
  const std::vector<Edge>& edges() const { return edges_; }
  // Index of the first edge at the enclosing radius itself, as far as it is there, else
  // edges().size().
  std::uint32_t radius_begin() const { return radius_begin_; }
  // The dissimilarity of edge `index` of edges(): 1.0 − double(w), or the distance.
  double dissimilarity(std::uint32_t index) const;
  // All vertices, the best connected first.
  const std::vector<std::uint16_t>& vertices() const { return vertices_; }
  // Whether edge a comes before edge b.
  bool precedes(Edge a, Edge b) const;
  // Whether some vertex is joined to both ends of `edge` by edges that come before it: then it
  // enters with a common neighbour.
  bool enters_with_triangle(Edge edge) const;

 private:
  // Everything whose type depends on the width of a key.
  template <class Key>
  struct Sorter {
    struct Entry {
      Edge edge;
      Key key;
    };
    std::vector<Key> triangle;  // keys of the lower triangle, row by row
    std::vector<Key> farthest;  // the largest key at each vertex
    std::vector<Key> row;       // scratch
    std::vector<Key> columns;   // scratch
    std::vector<Key> sample;    // some keys, sorted
    std::vector<Entry> sorted;  // edges() with their keys
    std::vector<Entry> scratch;
    Key radius = 0;
    Key taken = 0;  // edges with keys up to this one are in edges()
  };

  Sorter<std::uint32_t>& sorter(float) { return narrow_; }
  Sorter<std::uint64_t>& sorter(double) { return broad_; }
  template <class Key, class Scalar, class KeyOf>
  void fill(Sorter<Key>& sorter, const MatrixView<Scalar>& attention, bool causal, KeyOf key_of);
  template <class Key>
  void take_row(Sorter<Key>& sorter, Index row, const Key* keys);
  template <class Key>
  void prepare(Sorter<Key>& sorter);
  template <class Key>
  bool append(Sorter<Key>& sorter);
  void order_vertices();
  template <class Key>
  static auto entry(const Sorter<Key>& sorter, std::size_t a, std::size_t b) {
    if (a < b) std::swap(a, b);
    return std::pair(sorter.triangle[a * (a - 1) / 2 + b], static_cast<Edge>(a << 16 | b));
  }
  template <class Key>
  bool has_earlier_path(const Sorter<Key>& sorter, Edge edge) const;

  Index n_ = 0;
  bool wide_ = false;
  Metric metric_ = Metric::attention;
  Sorter<std::uint32_t> narrow_;
  Sorter<std::uint64_t> broad_;
  std::size_t batches_ = 0;
  std::vector<std::uint32_t> counts_;
  std::vector<double> roots_;
  std::vector<std::uint32_t> remoteness_;
  std::vector<std::uint64_t> ranks_;
  std::vector<std::uint64_t> scratch_;
  std::vector<std::uint16_t> vertices_;
  std::vector<Edge> edges_;
  std::uint32_t radius_begin_ = 0;
};

// Calls visit(i, j, d) with the Hellinger distances d of rows i > j, row by row; `roots` are
// scratch. Negative entries count as 0. Hellinger 1909.
template <class Scalar>
void hellinger_rows(const MatrixView<Scalar>& attention, std::vector<double>& roots,
                    const std::function<void(Index, Index, double)>& visit);

}  // namespace attnscope
