// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "simd/memory.h"

namespace attnscope {

enum class Symmetrize { mean, max, min };

// What an edge weighs whose two directions have these entries.
inline double symmetrized(double a, double b, Symmetrize how) {
  return how == Symmetrize::mean  ? 0.5 * (a + b)
         : how == Symmetrize::max ? std::max(a, b)
                                  : std::min(a, b);
}

// How a head becomes an undirected graph. Without a threshold the graph is weighted, W = (A + Aᵀ)/2
// or max(A, Aᵀ); with one it is simple, W_ij = 1[max(A_ij, A_ji) >= threshold], whatever
// `symmetrize` says. The diagonal is dropped. `normalized`: I − D^{-1/2} W D^{-1/2}, an isolated
// node's row being 0.
struct GraphOptions {
  Symmetrize symmetrize = Symmetrize::mean;
  std::optional<double> threshold;
  bool normalized = false;
};

// Scratch of reading a graph's weights row by row.
struct GraphRows {
  std::vector<Index> queue;
  AlignedBuffer row;
  AlignedBuffer columns;  // some of them, as rows
  AlignedBuffer band;     // rows that are turned into columns together
  AlignedBuffer degrees;
  double* degree = nullptr;  // of each node, zeros behind them, in `degrees`
  // The power of two that the weights and degrees were multiplied by; eigenvalues are divided by
  // it.
  double scale = 1.0;
};

}  // namespace attnscope
