// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "linalg/lanczos/shifted_lanczos.h"

// Whether Lanczos steps from one start missed an eigenvalue.
namespace attnscope {

// Steps from a second start at most.
inline constexpr Index kMostSecondSteps = 48;
// Vectors of memory that may_miss_eigenvalue takes.
inline constexpr Index kSecondVectors = kMostSecondSteps + 3;

// A residual says that some eigenvalue is near the largest Ritz value of an operator, not that it
// is the largest one: where two all but agree and the start has little of the one, the steps come
// to the other. Steps from a second start, orthogonal to the unit vectors `null` and `ritz`, tell:
// false where it has less than a ten-thousandth of a random direction's part along every
// eigenvector whose eigenvalue is, up to rounding, at least `level`. `memory` may begin with
// `ritz`.
//
// With the characteristic polynomial p_j of the tridiagonal matrix T_j of j steps with A and its
// off-diagonal entries β, a unit start with the part c along such an eigenvector has
// |c| p_j(level) <= ‖p_j(A) start‖ = β_1 ... β_j, and p_j(level) is the product of the pivots of
// level − T_j. Reference: Parlett, The Symmetric Eigenvalue Problem, 1998, sections 12.3 and 12.4.
template <class Number, class Apply>
bool may_miss_eigenvalue(Index padded, Index n, const Number* null, const Number* ritz,
                         double level, Number* memory, Apply&& apply) {
  constexpr double kLeastShare = 1e-4;
  constexpr Index kRemoved = 2;
  if (n <= kRemoved) return false;
  std::copy(ritz, ritz + padded, memory);
  std::copy(null, null + padded, memory + padded);
  Number* start = memory + kRemoved * padded;
  // The numbers after those of the first start.
  for (Index i = 0; i < padded; ++i)
    start[i] = i < n ? static_cast<Number>(start_entry(n + i)) : Number{0};
  remove_parts(memory, kRemoved, padded, start);
  scale_vector(start, 1.0 / std::sqrt(inner_product<Number>(start, start, padded)), padded);
  double share = std::sqrt(static_cast<double>(n));
  double pivot = 1.0, beside = 0.0;
  for (Index j = 0; j < kMostSecondSteps; ++j) {
    const Number* q = start + j * padded;
    Number* next = start + (j + 1) * padded;
    std::copy(q, q + padded, next);
    apply(next);
    const double alpha = inner_product<Number>(next, q, padded);
    remove_parts(memory, kRemoved + j + 1, padded, next);
    pivot = level - alpha - beside * beside / pivot;
    if (!(pivot > 0.0)) return true;
    beside = std::sqrt(static_cast<double>(inner_product<Number>(next, next, padded)));
    share *= beside / pivot;
    if (share < kLeastShare) return false;
    scale_vector(next, 1.0 / beside, padded);
  }
  return true;
}

}  // namespace attnscope
