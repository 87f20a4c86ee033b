// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "graphs/laplacian_factor.h"
#include "simd/memory.h"

namespace attnscope {

struct PreconditionedPairWorkspace {
  std::vector<Index> order;
  SimpleLaplacian reordered;
  LaplacianFactorWorkspace factor;
  AlignedBuffer krylov;
  AlignedBuffer ritz;
  AlignedBuffer basis;
  AlignedBuffer images;
};

// μ2 <= μ3 of H to a rounding of its size, the former 0 where H is in two pieces, of which
// `one_piece` holds the nodes of one; nothing where float32 does not get there.
//
// A float32 factor of L + 11ᵀ − σ takes a third of the time of a float64 one, and block Lanczos
// steps with its inverse give both vectors to some 1e-6; where they crawl, σ moves up to just below
// μ2. The rest is done in float64, which needs the factor only for corrections: residuals with the
// graph's edges, and eigenvalues of the Laplacian on the vectors and all corrections so far.
std::optional<EigenvaluePair> preconditioned_pair(const SimpleLaplacian& graph,
                                                  const std::vector<Index>& one_piece,
                                                  PreconditionedPairWorkspace& workspace);

}  // namespace attnscope
