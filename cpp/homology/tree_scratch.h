// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace attnscope {

__extension__ typedef unsigned __int128 WideRank;

// A number that orders edges from near to far, and equally near ones by (row, column).
template <class Float>
using EdgeRank = std::conditional_t<std::is_same_v<Float, double>, WideRank, std::uint64_t>;

// Scratch of TreeRounds whose type depends on the width of a weight. Vectors of a row lie
// within one cache line.
template <class Float>
struct TreeScratch {
  using Number = std::conditional_t<std::is_same_v<Float, double>, std::int64_t, std::int32_t>;
  template <class T>
  using Rows = std::vector<T, Eigen::aligned_allocator<T>>;

  Rows<Float> diagonal;     // of each row the vector that its vertex lies in
  Rows<Float> merged;       // the largest similarity from a component to each vertex
  Rows<Number> edge;        // and its edge
  Rows<Float> column_best;  // the largest similarity in each column
  Rows<Number> column_edge;
  Rows<Number> component;                // of each vertex
  std::vector<EdgeRank<Float>> nearest;  // the nearest edge out of each component
  std::vector<EdgeRank<Float>> tree;     // edges so far
};

// Scratch of components that become one.
struct ComponentScratch {
  std::vector<std::uint32_t> neighbour;
  std::vector<std::uint32_t> parent;   // itself at a root
  std::vector<std::uint32_t> number;   // of each root's new component
  std::vector<std::uint32_t> joined;   // the new component of each
  std::vector<std::uint32_t> begin;    // of the members of each new component, and the end
  std::vector<std::uint32_t> place;    // of the next member of each
  std::vector<std::uint32_t> members;  // by new component, in order
};

}  // namespace attnscope
