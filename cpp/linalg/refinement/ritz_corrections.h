// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "linalg/lanczos/block_lanczos.h"

// Corrections of one or two Ritz vectors from what a float32 inverse and its Krylov space know.
namespace attnscope {

// Conjugate gradients at most for one correction.
inline constexpr int kMostCorrectionSteps = 16;
// Vectors of memory that correct_ritz_vectors takes.
inline constexpr Index kCorrectionVectors = 8;

// The Ritz vectors of a Krylov space of B⁻¹, all that span it, those of the largest values first,
// of which the first `targets` are to be corrected.
struct RitzSpace {
  Index padded;
  const BlockRound& round;
  const float* vectors;
  Index targets;

  // x becomes (1 − δB⁻¹)⁻¹ x within the space and stays what it is across it, without its part
  // along the targets.
  void deflate(double delta, float* x) const {
    // An eigenvalue that is all but another's must not drown the rest.
    constexpr double kLeastPivot = 1e-4;
    float changes[2 * kMostBlocks];
    for (Index k = 0; k < round.size; ++k) {
      const double inside = 1.0 / std::max(kLeastPivot, 1.0 - delta * round.theta(k));
      changes[k] = static_cast<float>(k < targets ? -1.0 : inside - 1.0) *
                   inner_product<float>(vectors + k * padded, x, padded);
    }
    for (Index k = 0; k < round.size; ++k)
      add_multiple<float>(x, static_cast<double>(changes[k]), vectors + k * padded, padded);
  }
};

// With z = B⁻¹r of the residuals r of `count` vectors, one or two, of values δ of B: the solutions
// t of (1 − δB⁻¹) t = z across the targets, to `share` of z, which make them eigenvectors.
// Conjugate gradients that solve exactly within the Krylov space; solve(x, count) applies B⁻¹ to
// `count` vectors in place. `memory` begins with the vectors z.
// Reference: Sleijpen, van der Vorst, A Jacobi–Davidson iteration method for linear eigenvalue
// problems, 1996.
template <class Solve>
const float* correct_ritz_vectors(const RitzSpace& space, Index count, const double* delta,
                                  const double* share, float* memory, Solve&& solve) {
  const Index padded = space.padded;
  float* rest = memory;
  float* solution = memory + count * padded;
  float* direction = memory + 2 * count * padded;
  float* image = memory + 3 * count * padded;
  std::fill(solution, direction, 0.0f);
  std::copy(rest, solution, direction);
  double rho[2], small_enough[2];
  bool is_open[2];
  for (Index k = 0; k < count; ++k) {
    const float* z = rest + k * padded;
    small_enough[k] = share[k] * share[k] * inner_product<float>(z, z, padded);
    space.deflate(delta[k], direction + k * padded);
    rho[k] = inner_product<float>(z, direction + k * padded, padded);
    is_open[k] = rho[k] > 0.0;
  }
  for (int step = 0; step < kMostCorrectionSteps; ++step) {
    if (std::none_of(is_open, is_open + count, [](bool open) { return open; })) break;
    std::copy(direction, image, image);
    solve(image, count);
    for (Index k = 0; k < count; ++k) {
      if (!is_open[k]) continue;
      is_open[k] = false;
      float* z = rest + k * padded;
      float* d = direction + k * padded;
      float* y = image + k * padded;
      for (Index i = 0; i < padded; ++i) y[i] = d[i] - static_cast<float>(delta[k]) * y[i];
      const double curvature = inner_product<float>(d, y, padded);
      if (!(curvature > 0.0)) {
        // Where eigenvalues all but agree rounding decides: any direction is better than none.
        if (step == 0) std::copy(d, d + padded, solution + k * padded);
        continue;
      }
      add_multiple<float>(solution + k * padded, rho[k] / curvature, d, padded);
      add_multiple<float>(z, -rho[k] / curvature, y, padded);
      if (inner_product<float>(z, z, padded) <= small_enough[k]) continue;
      std::copy(z, z + padded, y);
      space.deflate(delta[k], y);
      const double next = inner_product<float>(z, y, padded);
      scale_vector(d, next / rho[k], padded);
      add_multiple<float>(d, 1.0, y, padded);
      rho[k] = next;
      is_open[k] = next > 0.0;
    }
  }
  return solution;
}

}  // namespace attnscope
