// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "graphs/threshold_levels.h"

namespace attnscope {

// Scratch of count_strong_components: a bit for each edge and for each vertex, 64 to a word.
struct StrongSearch {
  LevelTable turned;                   // levels of the edges into each vertex
  std::vector<std::uint64_t> from;     // edges of one graph, row by row
  std::vector<std::uint64_t> into;     // the same edges, column by column
  std::vector<std::uint64_t> waiting;  // vertices that no search has reached
  std::vector<Index> path;
  std::vector<Index> cursor;    // the word of its row at which a vertex of the path goes on
  std::vector<Index> finished;  // vertices in the order in which their search ended
};

// components[t] = number of strongly connected components of the directed graph {directed > t}, for
// t below `count`; n where every edge leads to an earlier vertex, as in a causal map. Two searches
// in depth, over the edges and over the edges turned: O(count·n²/64) words. Sharir 1981.
void count_strong_components(const LevelTable& directed, Index count, StrongSearch& search,
                             std::vector<std::int64_t>& components);

}  // namespace attnscope
