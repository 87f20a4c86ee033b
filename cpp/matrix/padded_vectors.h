// SPDX-License-Identifier: MIT
#pragma once

#include "simd/lanes.h"

// Arithmetic of vectors that are `padded` numbers long, a multiple of kPackWidth, on 64-byte
// boundaries, and 0 behind their own length.
namespace attnscope {

inline double inner_product(const double* x, const double* y, Index padded) {
  assert(padded >= 0 && padded % kPackWidth == 0);
  const Lanes* a = reinterpret_cast<const Lanes*>(x);
  const Lanes* b = reinterpret_cast<const Lanes*>(y);
  Lanes sums[4] = {};
  const Index count = padded / kPackWidth;
  Index i = 0;
  for (; i + 4 <= count; i += 4) {
    for (Index k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  }
  // Counted down: GCC 12 takes the bound of a loop to `count` that never runs for a mistake.
  for (Index left = count % 4; left > 0; --left, ++i) sums[0] += a[i] * b[i];
  return sum_of_lanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// x += factor · y.
inline void add_multiple(double* x, double factor, const double* y, Index padded) {
  assert(padded >= 0 && padded % kPackWidth == 0);
  Lanes* to = reinterpret_cast<Lanes*>(x);
  const Lanes* from = reinterpret_cast<const Lanes*>(y);
  for (Index i = 0; i < padded / kPackWidth; ++i) to[i] += factor * from[i];
}

inline void scale_vector(double* x, double factor, Index padded) {
  for (Index i = 0; i < padded; ++i) x[i] *= factor;
}

// Removes from x its part along each of the `count` orthonormal vectors in `basis`, four at a time
// so that x is read once for four.
inline void remove_parts(const double* basis, Index count, Index padded, double* x) {
  assert(padded >= 0 && padded % kPackWidth == 0);
  Lanes* to = reinterpret_cast<Lanes*>(x);
  const Index size = padded / kPackWidth;
  Index c = 0;
  for (; c + 4 <= count; c += 4) {
    const Lanes* q[4];
    for (Index k = 0; k < 4; ++k) q[k] = reinterpret_cast<const Lanes*>(basis + (c + k) * padded);
    Lanes sums[4] = {};
    for (Index i = 0; i < size; ++i) {
      for (Index k = 0; k < 4; ++k) sums[k] += q[k][i] * to[i];
    }
    double parts[4];
    for (Index k = 0; k < 4; ++k) parts[k] = sum_of_lanes(sums[k]);
    for (Index i = 0; i < size; ++i) {
      Lanes rest = to[i];
      for (Index k = 0; k < 4; ++k) rest -= parts[k] * q[k][i];
      to[i] = rest;
    }
  }
  for (; c < count; ++c) {
    add_multiple(x, -inner_product(basis + c * padded, x, padded), basis + c * padded, padded);
  }
}

}  // namespace attnscope
