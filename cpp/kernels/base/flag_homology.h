// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/base/cycle_labels.h"
#include "kernels/base/edge_order.h"

namespace attnscope {

// H0 and H1, over Z/2, of a flag (clique) complex that grows edge by edge.
//
// When edge {u, w} enters, everything it changes can be read off the lune, the common neighbours of u
// and w: an empty lune joins two components or opens a cycle; otherwise each connected component of the
// lune beyond the first closes, through the 4-cycle it makes with the first, at most one class. Lunes are
// intersections of adjacency bitsets, and triangles are never listed. Koyama, Mémoli, Robins, Turner,
// Faster computation of degree-1 persistent homology using the reduced Vietoris–Rips filtration, 2023.
class FlagHomology {
 public:
  // A class of H1 that opened with edge `birth` and closed with edge `death` (positions in the order).
  struct Cycle {
    std::uint32_t birth;
    std::uint32_t death;
  };

  // Starts from isolated vertices. `by_connection` lists them, well connected ones first: the answer does
  // not depend on it, the speed does. Memory O(n²), kept for the next matrix.
  void reset(const std::vector<std::uint16_t>& by_connection);

  // Adds edges[begin, end). `last_group`: from that position on no class that opens matters, so work
  // stops as soon as one component and no class older than it is left.
  void add(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
           std::uint32_t last_group = std::numeric_limits<std::uint32_t>::max());

  Index components() const { return components_; }
  Index cycles() const { return static_cast<Index>(labels_.alive()); }
  // Positions of the edges that joined two components, ascending.
  const std::vector<std::uint32_t>& merges() const { return merges_; }
  // Classes that have closed, in the order in which they did.
  const std::vector<Cycle>& closed() const { return closed_; }

 private:
  template <int kWords>
  void add_words(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
                 std::uint32_t last_group);
  // Splits the lune of (u, w), whose first vertex is `apex`, and closes what its components close.
  template <int kWords>
  void close(std::uint32_t u, std::uint32_t w, std::uint32_t apex, std::uint32_t position,
             const std::uint64_t* lune, std::uint64_t* rest);
  // Index of the cell of an edge: one per unordered pair.
  static std::size_t cell(std::uint32_t u, std::uint32_t w) {
    if (u < w) std::swap(u, w);
    return static_cast<std::size_t>(u) * (u - 1) / 2 + w;
  }
  CycleLabels::Id label(std::uint32_t u, std::uint32_t w);
  std::uint32_t root(std::uint32_t vertex);

  Index n_ = 0;
  std::size_t words_ = 0;
  Index components_ = 0;
  std::size_t old_cycles_ = 0;  // alive classes that opened before the last group
  std::uint32_t last_group_ = 0;
  std::vector<std::uint16_t> position_;  // of a vertex in by_connection: its bit
  std::vector<std::uint64_t> rows_;      // adjacency, by bit
  // Per pair of bits once its edge has entered: a vertex of its lune then, or its label with kLabelled.
  std::vector<std::uint32_t> cells_;
  std::vector<std::uint16_t> parent_;
  std::vector<std::uint32_t> merges_;
  std::vector<Cycle> closed_;
  std::vector<std::uint32_t> births_;  // position of the edge that opened each class
  CycleLabels labels_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pending_;
  std::vector<std::uint64_t> rest_;
  std::vector<std::uint64_t> lune_;
};

}  // namespace attnscope
