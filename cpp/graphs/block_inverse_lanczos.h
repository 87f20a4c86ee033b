// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "graphs/simple_laplacian.h"
#include "simd/memory.h"

namespace attnscope {

struct BlockInverseLanczosWorkspace {
  AlignedBuffer matrix;
  AlignedBuffer inverses;
  AlignedBuffer basis;
};

// μ2 <= μ3 of H to a rounding of its size, the former 0 where H is in two pieces, of which
// `one_piece` holds the nodes of one; nothing where the steps do not converge.
//
// Lanczos steps with the inverse of L + 11ᵀ, two vectors at a time, so that an eigenvalue of any
// multiplicity is found twice. Where eigenvalues crowd above μ3 the matrix is shifted up to just
// below it, the vector of μ2 being lifted out of the way; the new factor exists only if no other
// eigenvalue lies below the shift. Cost about m³/3 operations for each of one to three factors, and
// 4 m² a step. Reference: Golub, Underwood, The block Lanczos method for computing eigenvalues,
// 1977.
std::optional<EigenvaluePair> block_inverse_lanczos(const SimpleLaplacian& laplacian,
                                                    const std::vector<Index>& one_piece,
                                                    BlockInverseLanczosWorkspace& workspace);

}  // namespace attnscope
