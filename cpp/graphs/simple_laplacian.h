// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "graphs/threshold_levels.h"
#include "simd/memory.h"

namespace attnscope {

// A simple graph H on some of the rows of a table of levels, with an edge wherever level > above.
struct LevelGraph {
  const LevelTable& level;
  Level above;
  const std::vector<Index>& nodes;
  const std::vector<double>& degree;  // in H
};

// Its second and third smallest Laplacian eigenvalues.
struct EigenvaluePair {
  double mu2;
  double mu3;
};

// Writes the unit vector that is constant on each of two pieces of a graph and orthogonal to 1 to
// vector[order]; the nodes of the one piece are given.
void write_piece_vector(const std::vector<Index>& one_piece, Index order, double* vector);

// The Laplacian L of H. Its entries are whole numbers, so a row is its degree and a bit for every
// edge.
class SimpleLaplacian {
 public:
  void read(const LevelGraph& graph);
  // Another's, whose node order[i] becomes node i.
  void reorder(const SimpleLaplacian& other, const std::vector<Index>& order);

  Index order() const { return order_; }
  double degree(Index i) const { return degree_.data()[i]; }
  // How long the vectors of `multiply` are.
  Index padded() const { return 64 * words_; }

  // visit(j) for every neighbour j of node i, ascending.
  template <class Visit>
  void for_each_neighbour(Index i, Visit&& visit) const {
    for (Index word = 0; word < words_; ++word) {
      for (std::uint64_t rest = edges_[i * words_ + word]; rest != 0; rest &= rest - 1)
        visit(64 * word + std::countr_zero(rest));
    }
  }

  // The panels of the first `size` rows and columns of L + 11ᵀ + lift·vvᵀ − σ, whose columns past
  // those are the unit matrix's: 1 where H has no edge, 0 where it has, degrees plus 1 on the
  // diagonal. v may be null, and is as long as the panels otherwise.
  template <class Number>
  void fill_panels(Index size, const Number* v, double lift, double sigma, Number* panels) const;

  // images[k] = L vectors[k] for kCount vectors, 1 or 2. Cost kCount n² operations.
  template <Index kCount>
  void multiply(const double* const (&vectors)[kCount], double* const (&images)[kCount]) const;

 private:
  // The edges of a row from a column on, one a bit.
  std::uint64_t edges_from(Index row, Index column) const {
    return edges_[row * words_ + column / 64] >> (column % 64);
  }

  Index order_ = 0;
  Index words_ = 0;  // of a row
  std::vector<std::uint64_t> edges_;
  std::vector<Level> levels_;  // of a row's nodes
  std::vector<Index> places_;
  AlignedBuffer degree_;
};

}  // namespace attnscope
