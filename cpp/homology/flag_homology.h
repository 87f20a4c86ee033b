// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "homology/cycle_labels.h"
#include "homology/edge_order.h"

namespace attnscope {

// H0 and H1, over Z/2, of a flag (clique) complex that grows edge by edge.
//
// When edge {u, w} enters, everything it changes can be read off the lune, the common neighbours of
// u and w: an empty lune joins two components or opens a cycle; otherwise each connected component
// of the lune beyond the first closes, through the 4-cycle it makes with the first, at most one
// class. Lunes are intersections of adjacency bitsets, and triangles are never listed. Edges whose
// label may not be zero are marked in a second set of bitsets: an edge whose lune meets none of
// them changes nothing, so most lunes of dense graphs are never split. Koyama, Mémoli, Robins,
// Turner, Faster computation of degree-1 persistent homology using the reduced Vietoris–Rips
// filtration, 2023.
class FlagHomology {
 public:
  // A class of H1 that opened with edge `birth` and closed with edge `death` (positions in the
  // order).
  struct Cycle {
    std::uint32_t birth;
    std::uint32_t death;
  };
  static constexpr std::uint32_t kOpen = 0xffffffffu;

  // Starts from isolated vertices. `by_connection` lists them, well connected ones first: the
  // answer does not depend on it, the speed does. Memory O(n²), kept for the next matrix.
  void reset(const std::vector<std::uint16_t>& by_connection);

  // Adds edges[begin, end). `last_group`: from that position on no class that opens matters, so
  // work stops as soon as one component and no class older than it is left.
  void add(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
           std::uint32_t last_group = std::numeric_limits<std::uint32_t>::max());

  // What the edges of `order` that have not entered can still do. `nothing`: there is one
  // component, no open class, and each pair of vertices without a common neighbour gets one before
  // its own edge enters. `opens`: edge `awaited` will open a class. `unknown`: too early to tell.
  enum class Rest { unknown, opens, nothing };
  Rest look_ahead(const EdgeOrder& order, Edge& awaited);

  // Whether the edge has entered.
  bool joined(Edge edge) {
    const std::size_t w = bit_[edge_column(edge)];
    return (row(bit_[edge_row(edge)])[w >> 6] >> (w & 63) & 1) != 0;
  }

  Index components() const { return components_; }
  // Number of open classes of H1.
  Index cycles() const { return static_cast<Index>(labels_.alive()); }
  // Positions of the edges that joined two components, ascending.
  const std::vector<std::uint32_t>& merges() const { return merges_; }
  // All classes that have opened, by age; `death` is kOpen where one has not closed.
  const std::vector<Cycle>& classes() const { return classes_; }

 private:
  // A row of adjacency bits lies on a boundary of 32 bytes, of 64 where they divide its length.
  using Rows = std::vector<std::uint64_t, Eigen::aligned_allocator<std::uint64_t>>;

  // An edge by the bits of its ends, and what its cell held when it was last looked at.
  struct Marked {
    std::uint16_t u;
    std::uint16_t w;
    std::uint32_t entry;
  };

  template <int kWords>
  void add_words(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
                 std::uint32_t last_group);
  template <int kWords>
  Rest look_ahead_words(const EdgeOrder& order, Edge& awaited);
  template <class Work>
  auto unrolled(Work work);
  // Labels edge (u, w), whose lune meets labelled edges at u or w, and closes what the components
  // of the lune close.
  template <int kWords>
  void add_labelled(std::uint32_t u, std::uint32_t w, std::uint32_t position);
  // Takes vertices out of rest_ until they are a component that is not connected with reached_, and
  // returns one of it; bits::kNone where there is none. What is connected joins reached_.
  template <int kWords>
  std::uint32_t next_component();
  // The sum around the 4-cycle of (u, w) with two vertices of its lune is zero: closes a class
  // where it was not. A first vertex of bits::kNone stands for one whose edges have the label zero.
  void close(std::uint32_t u, std::uint32_t w, std::uint32_t first, std::uint32_t second,
             std::uint32_t position);
  void mark(std::uint32_t u, std::uint32_t w, std::uint32_t entry);
  // Drops the marks of edges whose labels have become zero.
  void drop_zero_labels();
  std::uint64_t* row(std::size_t bit) { return rows_.data() + bit * words_; }
  std::uint64_t* labelled(std::size_t bit) { return labelled_.data() + bit * words_; }
  // The cell of an edge: one per unordered pair.
  static std::size_t cell_of(std::size_t u, std::size_t w) {
    return u > w ? u * (u - 1) / 2 + w : w * (w - 1) / 2 + u;
  }
  // What is known of the label of an edge: its cell, 0 where it is not marked.
  std::uint32_t entry(std::uint32_t u, std::uint32_t w);
  CycleLabels::Id label(std::uint32_t u, std::uint32_t w);
  std::uint32_t root(std::uint32_t vertex);

  Index n_ = 0;
  std::size_t words_ = 0;
  Index components_ = 0;
  std::size_t old_cycles_ = 0;  // open classes that opened before the last group
  std::uint32_t last_group_ = 0;
  std::vector<std::uint16_t> vertex_;  // by bit
  std::vector<std::uint16_t> bit_;     // by vertex
  Rows rows_;                          // by bit: its neighbours and itself
  Rows labelled_;                      // by bit: neighbours by edges whose label may not be zero
  std::vector<Marked> marked_;         // these edges
  std::size_t visits_ = 0;             // edges that saw marks since some were last dropped
  std::size_t patience_ = 0;           // visits until marks are looked through again
  std::size_t closed_ = 0;             // classes that had closed then
  Rows reached_;                       // one row of scratch each
  Rows rest_;
  Rows joined_;
  Rows fresh_;
  // Per pair of vertices whose edge is marked: 0 when its label is zero, kLabelled | label, or one
  // more than the bit of a common neighbour that it had when it entered, from which the label
  // follows when it is needed. Cells of other pairs hold what they held last.
  std::vector<std::uint32_t> cells_;
  std::vector<std::uint16_t> parent_;
  std::vector<std::uint32_t> merges_;
  std::vector<Cycle> classes_;
  CycleLabels labels_;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> pending_;
};

}  // namespace attnscope
