// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>

#include "simd/memory.h"

namespace attnscope {

// The Laplacian L of one connected graph.
struct LaplacianPanels {
  Index n;
  const double* panels;  // as panel_product takes them
  const double* null;    // the unit null vector, 0 behind n, as long as the panels
  double lift;           // a size that its eigenvalue is moved to, above λ2
};

struct PreconditionedFiedlerWorkspace {
  AlignedBuffer factor;
  AlignedBuffer inverses;
  AlignedBuffer krylov;
  AlignedBuffer lifts;
  AlignedBuffer basis;
  AlignedBuffer images;
};

// λ2 with a bound of its error below `tolerance`·λ2, or below a rounding of the largest degree
// where that is more; nothing where float32 does not get there.
//
// A float32 factor of L + lift·uuᵀ − σ takes half the time of a float64 one, and Lanczos steps with
// its inverse give λ2 to about 1e-6; where they crawl, σ moves up to just below λ2. The rest is
// done by Davidson's steps: residuals and Rayleigh quotients in float64, corrections from the
// factor. Steps from a second start say that no other eigenvalue is so near that the first could
// have come to it instead; nothing where one may be.
std::optional<double> preconditioned_fiedler_value(const LaplacianPanels& laplacian,
                                                   double tolerance,
                                                   PreconditionedFiedlerWorkspace& workspace);

}  // namespace attnscope
