// SPDX-License-Identifier: MIT
#pragma once

#include "simd/lanes.h"

// Arithmetic of vectors of float64 or float32 that are `padded` numbers long, a multiple of what a
// vector register holds, on 64-byte boundaries, and 0 behind their own length.
namespace attnscope {

template <class Number>
struct LanesFor {
  using Vector = Lanes;
};
template <>
struct LanesFor<float> {
  using Vector = FloatLanes;
};

template <class Number>
inline constexpr Index kLanesFor = static_cast<Index>(sizeof(Lanes) / sizeof(Number));

template <class Number>
Number inner_product(const Number* x, const Number* y, Index padded) {
  using Vector = typename LanesFor<Number>::Vector;
  assert(padded >= 0 && padded % kLanesFor<Number> == 0);
  const auto* a = reinterpret_cast<const Vector*>(x);
  const auto* b = reinterpret_cast<const Vector*>(y);
  Vector sums[4] = {};
  const Index count = padded / kLanesFor<Number>;
  Index i = 0;
  for (; i + 4 <= count; i += 4) {
    for (Index k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  }
  // Counted down: GCC 12 takes the bound of a loop to `count` that never runs for a mistake.
  for (Index left = count % 4; left > 0; --left, ++i) sums[0] += a[i] * b[i];
  return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// x += factor · y.
template <class Number>
void add_multiple(Number* x, double factor, const Number* y, Index padded) {
  using Vector = typename LanesFor<Number>::Vector;
  assert(padded >= 0 && padded % kLanesFor<Number> == 0);
  auto* to = reinterpret_cast<Vector*>(x);
  const auto* from = reinterpret_cast<const Vector*>(y);
  const auto scale = static_cast<Number>(factor);
  for (Index i = 0; i < padded / kLanesFor<Number>; ++i) to[i] += scale * from[i];
}

template <class Number>
void scale_vector(Number* x, double factor, Index padded) {
  const auto scale = static_cast<Number>(factor);
  for (Index i = 0; i < padded; ++i) x[i] *= scale;
}

// Removes from x its part along each of the `count` orthonormal vectors in `basis`, four at a time
// so that x is read once for four.
template <class Number>
void remove_parts(const Number* basis, Index count, Index padded, Number* x) {
  using Vector = typename LanesFor<Number>::Vector;
  assert(padded >= 0 && padded % kLanesFor<Number> == 0);
  auto* to = reinterpret_cast<Vector*>(x);
  const Index size = padded / kLanesFor<Number>;
  Index c = 0;
  for (; c + 4 <= count; c += 4) {
    const Vector* q[4];
    for (Index k = 0; k < 4; ++k) q[k] = reinterpret_cast<const Vector*>(basis + (c + k) * padded);
    Vector sums[4] = {};
    for (Index i = 0; i < size; ++i) {
      for (Index k = 0; k < 4; ++k) sums[k] += q[k][i] * to[i];
    }
    Number parts[4];
    for (Index k = 0; k < 4; ++k) parts[k] = sum_of_lanes(sums[k]);
    for (Index i = 0; i < size; ++i) {
      Vector rest = to[i];
      for (Index k = 0; k < 4; ++k) rest -= parts[k] * q[k][i];
      to[i] = rest;
    }
  }
  for (; c < count; ++c) {
    const double along = inner_product<Number>(basis + c * padded, x, padded);
    add_multiple(x, -along, basis + c * padded, padded);
  }
}

}  // namespace attnscope
