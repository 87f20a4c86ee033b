// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "homology/edge_order.h"
#include "homology/flag_homology.h"
#include "homology/spanning_tree.h"

namespace attnscope {

// A class of H0 or H1 and the edges that opened and closed it. Edges are (row, column) with row >
// column; -1 where there is none: vertices are there from 0 on, and one component never ends.
struct Bar {
  double birth;
  double death;
  std::array<std::int32_t, 2> birth_edge;
  std::array<std::int32_t, 2> death_edge;
  std::int8_t dimension;
};

struct PersistenceOptions {
  int max_dimension = 1;
  Symmetrize symmetrize = Symmetrize::max;
  Metric metric = Metric::attention;
};

struct PersistenceWorkspace {
  SpanningTree tree;  // for H0 alone
  EdgeOrder order;
  FlagHomology homology;
};

// Appends the bars of the Vietoris–Rips filtration of one head to `bars`, sorted by dimension,
// birth, death and birth edge; bars of length 0 are left out. Dissimilarities are those of
// EdgeOrder, vertices enter at 0. Exactly one H0 bar is infinite; n = 1 has that bar alone. At most
// kMaxVertices tokens. `ahead` is the memory of the next head. Cost O(n²) for H0, plus O(n² log n +
// n³/64) for the edges, the lunes and the reduction of the 4-cycles for H1. False, and no bar,
// where an entry is NaN or, but for distances, infinite.
template <class Scalar>
bool persistence(const MatrixView<Scalar>& attention, const PersistenceOptions& options,
                 PersistenceWorkspace& workspace, std::vector<Bar>& bars, Ahead ahead = {});

}  // namespace attnscope
