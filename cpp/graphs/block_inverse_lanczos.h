// SPDX-License-Identifier: MIT
#pragma once

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
  const std::vector<Index>&
      one_piece;  // nodes of one of two components; empty where H is connected
};

struct BlockInverseLanczosWorkspace {
  AlignedBuffer matrix;
  AlignedBuffer inverses;
  AlignedBuffer basis;
};

// The second and third smallest Laplacian eigenvalues μ2 <= μ3 of one graph, the former 0 where H
// is in two pieces, to a rounding of its size. False where the steps do not converge.
//
// Lanczos steps with the inverse of L + 11ᵀ, two vectors at a time, so that an eigenvalue of any
// multiplicity is found twice. Where eigenvalues crowd above μ3 the matrix is shifted up to just
// below it, the vector of μ2 being lifted out of the way; the new factor exists only if no other
// eigenvalue lies below the shift. Cost about m³/3 operations for each of one to three factors, and
// 4 m² a step. Reference: Golub, Underwood, The block Lanczos method for computing eigenvalues,
// 1977.
bool block_inverse_lanczos(const LevelGraph& graph, BlockInverseLanczosWorkspace& workspace,
                           double* mu2, double* mu3);

}  // namespace attnscope
