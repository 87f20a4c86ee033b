// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

#include "matrix/matrix_view.h"
#include "simd/memory.h"

namespace attnscope {

// A connected simple graph, or one in two pieces, of 3 nodes or more: a bit for every edge, row
// after row, of which those below the diagonal count, and the degrees.
struct GraphBits {
  const std::uint64_t* edges;
  const double* degree;
  Index nodes;
};

// Its second and third smallest Laplacian eigenvalues, and how far from the second μ2 may be:
// infinity where the third is too near to say. μ3 is off by less than kFloatPairError of `size`.
struct FloatPair {
  double mu2;
  double mu3;
  double error;
};

// Measured, not proven: twice the worst seen, 1.1e-6 on graphs of 128 nodes near the diagonal; most
// are off by a fifth of that.
inline constexpr double kFloatPairError = 2.5e-6;

// Graphs that one pack of float32 holds.
Index float_graph_pack_width();

// The pairs of up to float_graph_pack_width() graphs, each of at most `size` nodes and with rows of
// (size + 63) / 64 words, from the tridiagonal form of L + 11ᵀ in float32. μ2 is the Rayleigh
// quotient, in float64, of the eigenvector there: with its residual r it is above the eigenvalue by
// at most |r|²/(μ3 − μ2) (Temple 1928). A graph's result does not depend on the others.
class FloatGraphPack {
 public:
  void solve(Index size, std::span<const GraphBits> graphs, FloatPair* pairs);

 private:
  AlignedBuffer matrices_, lines_, wide_lines_, vectors_;
};

}  // namespace attnscope
