// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "graphs/block_inverse_lanczos.h"
#include "graphs/packs/float_graph_pack.h"
#include "graphs/preconditioned_pair.h"
#include "graphs/threshold_levels.h"
#include "simd/memory.h"
#include "simd/precision.h"

namespace attnscope {

// λ2 and λ3 − λ2 of simple graphs, several at a time, whatever matrices they come from.
//
// Nodes that touch all others are taken out first: a join of c such nodes with a graph H on m = n −
// c nodes has the eigenvalues 0, c + μ_i(H) for i >= 2, and n (c times). Where H falls into three
// pieces or more, as it does under a sink, λ2 = λ3 = c and nothing is left to solve. Otherwise L(H)
// + 11ᵀ, whose entries are small whole numbers, is made tridiagonal and bisected, together with
// others of its size; a large one is solved alone, see preconditioned_pair and, where float32 does
// not do, block_inverse_lanczos.
//
// `fast` makes the packs in float32, see FloatGraphPack: λ2 is off by less than 1e-6 of itself, and
// the gap by less than 5e-6 of n. A graph of which float32 does not say that is solved as before.
class SimpleGraphSpectra {
 public:
  // Graph with an edge wherever level > above, of the given degrees [n] and number of components.
  // The answers are in *fiedler_value and *gap after the next flush(); a gap needs n >= 3.
  // There, `fast`, *solved_exactly says whether float32 did not do.
  void add(const LevelTable& level, Level above, const std::int64_t* degree,
           std::int64_t components, double* fiedler_value, double* gap,
           Precision precision = Precision::exact, bool* solved_exactly = nullptr);
  void flush();

 private:
  struct Pending {
    double* fiedler_value;
    double* gap;
    double base;  // nodes taken out
    Index nodes;  // of H
    bool in_two;  // H is in two pieces, so that λ2 is `base` exactly
    bool* solved_exactly;
  };
  // Graphs that wait for others of their size, as bits.
  struct Queue {
    std::vector<Pending> pending;
    std::vector<std::uint64_t> edges;  // [graph, size, words of a row], below the diagonal
    std::vector<double> degree;        // [graph, size]
  };

  bool solve_alone(const LevelTable& level, Level above, const std::int64_t* degree,
                   double* fiedler_value, double* gap);
  void store(const LevelTable& level, Level above, const std::int64_t* degree, Index size,
             Queue& queue);
  void solve(Index size, Queue& queue);
  void solve_in_float32(Index size, Queue& queue);

  std::vector<Index> rest_;   // nodes of H
  std::vector<Index> piece_;  // places in rest_ of the first of two pieces
  std::vector<double> degree_;
  SimpleLaplacian laplacian_;
  PreconditionedPairWorkspace preconditioned_;
  BlockInverseLanczosWorkspace inverse_;
  std::vector<Level> row_;
  std::vector<Queue> queues_, float_queues_;  // by size
  FloatGraphPack float_pack_;
  AlignedBuffer matrices_;
  AlignedBuffer vectors_;
};

}  // namespace attnscope
