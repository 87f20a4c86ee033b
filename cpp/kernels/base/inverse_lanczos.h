// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/base/packed_tridiagonal.h"

namespace attnscope {

// Heads of trained models take 6 to 16 steps, diffuse random ones, whose smallest eigenvalues crowd at the
// edge of a continuum, up to 70 at n = 256. Past this many the caller solves directly.
inline constexpr Index kMostLanczosSteps = 128;

// Whether convergence is looked at after step j: always at first, later in turns, because the look grows
// with j.
inline bool is_inspected(Index j) { return (j >= 2 && j < 16) || j % 4 == 3; }

// Lanes that inverse_lanczos needs besides the basis; largest_ritz_value needs half of them.
inline constexpr Index kLanczosScratch = 4 * (kMostLanczosSteps + 1);

// The number that a fixed generator gives to coordinate i: a start vector that no symmetry of a graph
// is likely to share, and the same in every run.
inline double start_entry(Index i) {
  std::uint64_t z = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>(z ^ (z >> 31)) * 0x1p-63 - 1.0;
}

// Removes from x [n] its part along each of the `count` orthonormal vectors in `basis` (rows of n), four
// at a time so that x is read once for four.
inline void orthogonalize(const Lanes* basis, Index count, Index n, Lanes* x) {
  Index c = 0;
  for (; c + 4 <= count; c += 4) {
    const Lanes* q0 = basis + c * n;
    const Lanes *q1 = q0 + n, *q2 = q1 + n, *q3 = q2 + n;
    Lanes h0{}, h1{}, h2{}, h3{};
    for (Index i = 0; i < n; ++i) {
      h0 += q0[i] * x[i];
      h1 += q1[i] * x[i];
      h2 += q2[i] * x[i];
      h3 += q3[i] * x[i];
    }
    for (Index i = 0; i < n; ++i) x[i] -= h0 * q0[i] + h1 * q1[i] + h2 * q2[i] + h3 * q3[i];
  }
  for (; c < count; ++c) {
    const Lanes* q = basis + c * n;
    Lanes h{};
    for (Index i = 0; i < n; ++i) h += q[i] * x[i];
    for (Index i = 0; i < n; ++i) x[i] -= h * q[i];
  }
}

// The largest eigenvalue θ of the tridiagonal matrices that `size` Lanczos steps left (`alpha` [size],
// `beta` [size], the last of which couples the next step), and in which lanes it is as good as the
// largest eigenvalue of the operator itself: the bound residual²/gap on its error is below
// tolerance·θ, the gap being that to the second Ritz value, or its residual is. `scratch` holds 2 size
// lanes.
struct RitzValue {
  Lanes theta;
  LaneMask converged;
};

inline RitzValue largest_ritz_value(const Lanes* alpha, const Lanes* beta, Index size, double tolerance,
                                    Lanes* scratch) {
  Lanes* flipped = scratch;
  Lanes* squares = scratch + size;
  Lanes above = alpha[0] + (size > 1 ? beta[0] : Lanes{});
  for (Index k = 1; k < size; ++k) {
    above = larger(above, alpha[k] + beta[k - 1] + (k + 1 < size ? beta[k] : Lanes{}));
  }
  // Flipped about a point above its spectrum the tridiagonal matrix is positive definite.
  above *= 1.001;
  for (Index k = 0; k < size; ++k) flipped[k] = above - alpha[k];
  for (Index k = 0; k + 1 < size; ++k) squares[k] = beta[k] * beta[k];
  const Lanes mu = smallest_eigenvalue(flipped, squares, size, Lanes{}, above);
  const Lanes theta = above - mu;
  const Lanes coupling = beta[size - 1] * beta[size - 1];
  const Lanes residual = coupling / probe(flipped, squares, size, mu).last;  // squared
  const Lanes gap = residual / (tolerance * theta);
  // One Sturm count: is there a single Ritz value within the gap that the bound needs?
  const LaneMask alone = count_below(flipped, squares, size, mu + gap) <= broadcast(1.0);
  const LaneMask close = residual <= (tolerance * theta) * (tolerance * theta);
  return {theta, close | (alone & (gap < 0.5 * theta))};
}

// The smallest eigenvalue of each positive definite matrix M of a pack on the complement of the unit
// vectors `null` [n], n >= 2: 1/θ for the largest Ritz value θ of M⁻¹ in a growing Krylov space, with
// full reorthogonalisation. `apply(x)` overwrites x [n] with M⁻¹ x; `basis` holds
// (kMostLanczosSteps + 2) n, `scratch` kLanczosScratch lanes.
//
// A lane's value is taken where it converges and never touched again; it is NaN where it has not after
// kMostLanczosSteps.
// Reference: Parlett, The Symmetric Eigenvalue Problem, 1998, chapters 11 and 13.
template <class Apply>
Lanes inverse_lanczos(Index n, const Lanes* null, double tolerance, Lanes* basis, Lanes* scratch,
                      Apply&& apply) {
  Lanes* alpha = scratch;
  Lanes* beta = scratch + (kMostLanczosSteps + 1);
  Lanes* inner = scratch + 2 * (kMostLanczosSteps + 1);
  const Lanes one = broadcast(1.0);
  const auto dot = [n](const Lanes* x, const Lanes* y) {
    Lanes even{}, odd{};
    Index i = 0;
    for (; i + 1 < n; i += 2) {
      even += x[i] * y[i];
      odd += x[i + 1] * y[i + 1];
    }
    if (i < n) even += x[i] * y[i];
    return even + odd;
  };

  // The null vector is the first of the basis, so that one sweep keeps the others orthogonal to it too.
  for (Index i = 0; i < n; ++i) {
    basis[i] = null[i];
    basis[n + i] = broadcast(start_entry(i));
  }
  orthogonalize(basis, 1, n, basis + n);
  const Lanes length = one / square_root(dot(basis + n, basis + n));
  for (Index i = 0; i < n; ++i) basis[n + i] *= length;

  Lanes found = broadcast(std::numeric_limits<double>::quiet_NaN());
  LaneMask searching = found != found;
  const Index most = std::min(kMostLanczosSteps, n - 1);
  for (Index j = 0; j < most; ++j) {
    const Lanes* q = basis + (j + 1) * n;
    Lanes* next = basis + (j + 2) * n;
    for (Index i = 0; i < n; ++i) next[i] = q[i];
    apply(next);
    alpha[j] = dot(next, q);
    // The three-term recurrence takes out what is large, one full sweep the rounding that is left.
    if (j == 0) {
      for (Index i = 0; i < n; ++i) next[i] -= alpha[j] * q[i];
    } else {
      const Lanes* before = q - n;
      for (Index i = 0; i < n; ++i) next[i] -= alpha[j] * q[i] + beta[j - 1] * before[i];
    }
    orthogonalize(basis, j + 2, n, next);
    beta[j] = square_root(dot(next, next));

    const bool exhausted = j + 2 == n;
    // A lane whose space has closed is looked at in any step, and the others beside it are not.
    const LaneMask closed = searching & (beta[j] <= 1e-10 * alpha[0]);
    if (is_inspected(j) || exhausted || any(closed)) {
      const RitzValue ritz = largest_ritz_value(alpha, beta, j + 1, tolerance, inner);
      const LaneMask inspected = is_inspected(j) ? searching : closed;
      const LaneMask done = exhausted ? searching : inspected & ritz.converged;
      found = done ? one / ritz.theta : found;
      searching &= ~done;
      if (!any(searching)) break;
    }
    const Lanes scale = beta[j] > 0.0 ? one / beta[j] : Lanes{};
    for (Index i = 0; i < n; ++i) next[i] *= scale;
  }
  return found;
}

}  // namespace attnscope
