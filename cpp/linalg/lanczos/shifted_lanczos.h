// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "matrix/padded_vectors.h"

// Lanczos steps with the inverse of one shifted matrix.
namespace attnscope {

// Steps of one round at most, and with that the size of its basis.
inline constexpr Index kMostLanczosSteps = 48;

// The number that a fixed generator gives to coordinate i: a start vector that no symmetry of a
// graph is likely to share, and the same in every run.
inline double start_entry(Index i) {
  std::uint64_t z = (static_cast<std::uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>(z ^ (z >> 31)) * 0x1p-63 - 1.0;
}

// The largest eigenvalue of the tridiagonal matrix of `size` <= kMostLanczosSteps rows, whose
// off-diagonal entries are positive, by Laguerre's iteration on the characteristic polynomial,
// which falls on its largest root cubically from above. All eigenvalues are positive.
inline double largest_eigenvalue(const double* alpha, const double* beta, Index size) {
  assert(size <= kMostLanczosSteps);
  double top = 0.0;
  for (Index k = 0; k < size; ++k) {
    const double radius = (k > 0 ? beta[k - 1] : 0.0) + (k + 1 < size ? beta[k] : 0.0);
    top = std::max(top, alpha[k] + radius);
  }
  if (!(top > 0.0)) return top;
  // In units of the bound the polynomial neither overflows nor vanishes.
  double diagonal[kMostLanczosSteps], squares[kMostLanczosSteps];
  for (Index k = 0; k < size; ++k) {
    diagonal[k] = alpha[k] / top;
    squares[k] = k > 0 ? (beta[k - 1] / top) * (beta[k - 1] / top) : 0.0;
  }
  const auto order = static_cast<double>(size);
  double x = 1.0;
  for (int round = 0; round < 100; ++round) {
    double p0 = 1.0, d0 = 0.0, e0 = 0.0;  // the polynomial and two derivatives, one row before
    double p = x - diagonal[0], d = 1.0, e = 0.0;
    for (Index k = 1; k < size; ++k) {
      const double t = x - diagonal[k];
      const double p2 = t * p - squares[k] * p0;
      const double d2 = t * d + p - squares[k] * d0;
      const double e2 = t * e + 2.0 * d - squares[k] * e0;
      p0 = p, d0 = d, e0 = e;
      p = p2, d = d2, e = e2;
    }
    if (!(p > 0.0) || !(d > 0.0)) break;  // within rounding of the root
    const double slope = d / p;
    const double bend = slope * slope - e / p;
    const double spread = std::max(0.0, (order - 1.0) * (order * bend - slope * slope));
    const double step = order / (slope + std::sqrt(spread));
    x -= step;
    if (step <= 2e-16 * x) break;
  }
  return x * top;
}

// Where a round of Lanczos steps ended, and the space that they grew: basis vectors 1 to `size`,
// the tridiagonal matrix of the operator on them, and the unit vector of its largest eigenvalue.
struct LanczosRound {
  double theta = 0.0;     // largest Ritz value
  double residual = 0.0;  // of its vector
  bool converged = false;
  Index size = 0;
  double alpha[kMostLanczosSteps], beta[kMostLanczosSteps], ritz[kMostLanczosSteps];
};

// The vector of the largest Ritz value, to `vector`.
template <class Number>
void form_ritz_vector(const LanczosRound& round, const Number* basis, Index padded,
                      Number* vector) {
  std::fill(vector, vector + padded, Number{0});
  for (Index k = 0; k < round.size; ++k) {
    add_multiple(vector, round.ritz[k], basis + (k + 1) * padded, padded);
  }
}

// Grows a Krylov space of the operator that `apply(x)` applies in place, with full
// reorthogonalisation, from the unit vector basis + padded, on the complement of the unit vector
// basis. `basis` holds (kMostLanczosSteps + 2) vectors. Ends when the residual of the largest Ritz
// value θ is below tolerance(θ)·θ, or after kMostLanczosSteps, or when `dimension` of them have
// filled the space, or as soon as the residuals so far promise more than `patience` further steps.
//
// The bound residual²/gap would let it end sooner, but the gap to the second Ritz value is not the
// gap to the second eigenvalue: two that lie close together look like one until the residual is as
// small as their distance. Reference: Parlett, The Symmetric Eigenvalue Problem, 1998, chapters 11
// and 13.
template <class Number, class Tolerance, class Apply>
LanczosRound lanczos_round(Index padded, Index dimension, double patience, Number* basis,
                           Tolerance&& tolerance, Apply&& apply) {
  constexpr double kClosed = std::is_same_v<Number, float> ? 1e-6 : 1e-10;
  LanczosRound result;
  double* const alpha = result.alpha;
  double* const beta = result.beta;
  double* const ritz = result.ritz;
  const Index most = std::min(kMostLanczosSteps, dimension);
  double before = 0.0;  // the residual at the last look
  for (Index j = 0; j < most; ++j) {
    const Number* q = basis + (j + 1) * padded;
    Number* next = basis + (j + 2) * padded;
    std::copy(q, q + padded, next);
    apply(next);
    alpha[j] = inner_product<Number>(next, q, padded);
    // The three-term recurrence takes out what is large, one full sweep the rounding that is left.
    add_multiple(next, -alpha[j], q, padded);
    if (j > 0) add_multiple(next, -beta[j - 1], q - padded, padded);
    remove_parts(basis, j + 2, padded, next);
    beta[j] = std::sqrt(static_cast<double>(inner_product<Number>(next, next, padded)));

    const Index size = j + 1;
    const bool closed = beta[j] <= kClosed * alpha[0];
    if (closed || size == most || (size >= 4 && size % 2 == 0)) {
      const double theta = largest_eigenvalue(alpha, beta, size);
      // Backwards from the last component, the direction in which the vector grows.
      ritz[j] = 1.0;
      double square = 1.0;
      for (Index k = j; k > 0; --k) {
        const double beyond = k < j ? beta[k] * ritz[k + 1] : 0.0;
        ritz[k - 1] = ((theta - alpha[k]) * ritz[k] - beyond) / beta[k - 1];
        square += ritz[k - 1] * ritz[k - 1];
      }
      const double length = std::sqrt(square);
      result.theta = theta;
      result.residual = beta[j] / length;
      const double allowed = tolerance(theta) * theta;
      result.converged = size == dimension || result.residual <= allowed;
      // Residuals fall by the same factor from look to look.
      const double fall = before > 0.0 ? std::log(before / result.residual) : 1e300;
      const bool crawls = size >= 6 && static_cast<double>(size) >= 0.3 * patience &&
                          2.0 * std::log(result.residual / allowed) > patience * fall;
      before = result.residual;
      if (result.converged || closed || size == most || crawls) {
        result.size = size;
        for (Index k = 0; k < size; ++k) ritz[k] /= length;
        return result;
      }
    }
    scale_vector(next, 1.0 / beta[j], padded);
  }
  return result;
}

}  // namespace attnscope
