// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "homology/edge_order.h"
#include "homology/flag_homology.h"
#include "matrix/matrix_view.h"

namespace attnscope {

struct BettiWorkspace {
  RowScratch rows;
  FlagHomology homology;
  std::vector<double> thresholds;  // distinct, descending
  std::vector<Edge> found;
  std::vector<std::uint16_t> group;  // the first graph that holds each edge found
  std::vector<std::uint32_t> ends;   // edges in the graph of each threshold
  std::vector<Edge> edges;
  std::vector<std::uint32_t> degree;
  std::vector<std::uint32_t> places;
  std::vector<std::uint16_t> vertices;
};

// β0 and β1 over Z/2 of the clique complex of {w_ij >= t} for each of `count` thresholds t, to
// out[2·k] and out[2·k + 1]. w_ij = max, mean or min of A_ij and A_ji, i ≠ j, compared with t in
// float64; a weight above 1 counts as 1. β0 is in 1..n. A threshold of 1 or more gives the empty
// graph: n and 0. n = 1: 1 and 0. Cost O(n²) for reading, and the edges above the smallest
// threshold: rows of attention sum to 1, so there are at most n/t of them; they are shared out by
// threshold and not sorted. At most kMaxVertices tokens and 65535 thresholds.
template <class Scalar>
void betti_numbers(const MatrixView<Scalar>& attention, Symmetrize symmetrize,
                   const double* thresholds, Index count, std::int64_t* out,
                   BettiWorkspace& workspace);

}  // namespace attnscope
