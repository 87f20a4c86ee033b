// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "matrix/padded_vectors.h"

// A vector whose Rayleigh quotient is near a symmetric matrix's smallest eigenvalue, without a
// factor.
namespace attnscope {

// Vectors of scratch that rayleigh_descent takes.
inline constexpr Index kDescentVectors = 6;

// Where a descent ended: the unit vector's Rayleigh quotient, by how much the last step lowered it,
// and the length of its residual, in which rows of entries beyond the typical count for less, or
// one hub's would drown the others.
struct Descent {
  double value = 0.0;
  double fall = 0.0;
  double residual = 0.0;
};

// Steps after which a descent may be seen to be hopeless.
inline constexpr int kFewSteps = 4;

// Lowers the Rayleigh quotient of x, orthogonal to the unit vector `null` that multiply(x, y), y =
// Ax, maps to 0, by at most `most` steps of conjugate gradients on the diagonal's scale, until the
// residual is at most `enough` of the quotient, or after a few steps longer than `hopeless` of it:
// many eigenvalues are small, and more steps find none of them. Makes x a unit vector. The diagonal
// is positive, that of most rows about `typical`, and 1 behind the matrix. Reference: Knyazev,
// Toward the optimal preconditioned eigensolver: locally optimal block preconditioned conjugate
// gradient method, 2001.
template <class Number, class Multiply>
Descent rayleigh_descent(Index padded, const Number* diagonal, Number typical, const Number* null,
                         int most, double enough, double hopeless, Number* x, Number* scratch,
                         Multiply&& multiply) {
  // Entries closer to the quotient than this share of their own would drown the others.
  constexpr Number kCloseEntry = Number(0.1);
  Number* image = scratch;
  Number* residual = scratch + padded;
  Number* scaled = scratch + 2 * padded;
  Number* direction = scratch + 3 * padded;
  Number* direction_image = scratch + 4 * padded;
  Number* before = scratch + 5 * padded;  // the last residual
  // Returns the length before.
  const auto make_unit = [=](Number* v) {
    remove_parts<Number>(null, 1, padded, v);
    const double length = std::sqrt(static_cast<double>(inner_product<Number>(v, v, padded)));
    if (length > 0.0) scale_vector(v, 1.0 / length, padded);
    return length;
  };
  Descent end;
  if (!(make_unit(x) > 0.0)) return end;
  multiply(static_cast<const Number*>(x), image);
  std::fill(direction, direction + padded, Number{0});
  double last = 0.0;    // the last residual with what it is scaled to
  double length = 0.0;  // of the last direction
  for (int step = 0;; ++step) {
    const Number value = inner_product<Number>(x, image, padded);
    for (Index i = 0; i < padded; ++i) {
      residual[i] = image[i] - value * x[i];
      scaled[i] = residual[i] * typical / (diagonal[i] > typical ? diagonal[i] : typical);
    }
    end.fall = step > 0 ? end.value - value : 0.0;
    end.value = value;
    end.residual = std::sqrt(static_cast<double>(inner_product<Number>(scaled, residual, padded)));
    if (step == most || !(end.residual > enough * end.value)) return end;
    if (step >= kFewSteps && end.residual > hopeless * end.value) return end;
    for (Index i = 0; i < padded; ++i) {
      const Number entry = diagonal[i] - value, least = kCloseEntry * diagonal[i];
      scaled[i] = residual[i] / (entry > least ? entry : least);
    }
    const double now = inner_product<Number>(scaled, residual, padded);
    const double turn =
        step > 0 ? length * (now - inner_product<Number>(scaled, before, padded)) / last : 0.0;
    last = now;
    std::swap(before, residual);
    scale_vector(direction, turn, padded);
    add_multiple<Number>(direction, 1.0, scaled, padded);
    add_multiple<Number>(direction, -inner_product<Number>(direction, x, padded), x, padded);
    length = make_unit(direction);
    if (!(length > 0.0)) return end;
    multiply(static_cast<const Number*>(direction), direction_image);
    // The smaller eigenvalue of the matrix on the two vectors.
    const double beside = inner_product<Number>(x, direction_image, padded);
    if (beside == 0.0) return end;
    const double half =
        0.5 * (inner_product<Number>(direction, direction_image, padded) - end.value);
    const double tangent = -beside / (half + std::hypot(half, beside));
    const double cosine = 1.0 / std::sqrt(1.0 + tangent * tangent);
    scale_vector(x, cosine, padded);
    add_multiple<Number>(x, cosine * tangent, direction, padded);
    scale_vector(image, cosine, padded);
    add_multiple<Number>(image, cosine * tangent, direction_image, padded);
  }
}

}  // namespace attnscope
