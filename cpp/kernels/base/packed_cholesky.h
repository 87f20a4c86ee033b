// SPDX-License-Identifier: MIT
#pragma once

#include "kernels/base/lanes.h"

// Cholesky factors of a pack of positive definite matrices, and solutions with them.
namespace attnscope {

// Rows and columns of the square of accumulators that stays in registers.
#if defined(__AVX512F__)
inline constexpr Index kTile = 4;
#else
inline constexpr Index kTile = 3;
#endif

inline Index padded_to_tile(Index n) { return (n + kTile - 1) / kTile * kTile; }

// Overwrites the lower triangle of `a` ([n, n], n a multiple of kTile) with its Cholesky factor and
// writes the inverse of the factor's diagonal to `inverse` [n]. A lane that is not positive definite
// gets NaN. Left-looking: every entry of `a` is written once. Cost n³/3 operations per lane.
inline void factorize(Lanes* a, Index n, Lanes* inverse) {
  for (Index j0 = 0; j0 < n; j0 += kTile) {
    for (Index i0 = j0; i0 < n; i0 += kTile) {
      Lanes c[kTile][kTile];
      for (Index i = 0; i < kTile; ++i) {
        for (Index j = 0; j < kTile; ++j) c[i][j] = a[(i0 + i) * n + j0 + j];
      }
      for (Index k = 0; k < j0; ++k) {
        Lanes right[kTile];
        for (Index j = 0; j < kTile; ++j) right[j] = a[(j0 + j) * n + k];
        for (Index i = 0; i < kTile; ++i) {
          const Lanes left = a[(i0 + i) * n + k];
          for (Index j = 0; j < kTile; ++j) c[i][j] -= left * right[j];
        }
      }
      if (i0 == j0) {
        for (Index j = 0; j < kTile; ++j) {
          for (Index k = 0; k < j; ++k) c[j][j] -= c[j][k] * c[j][k];
          inverse[j0 + j] = 1.0 / square_root(c[j][j]);
          for (Index i = j + 1; i < kTile; ++i) {
            for (Index k = 0; k < j; ++k) c[i][j] -= c[i][k] * c[j][k];
            c[i][j] *= inverse[j0 + j];
          }
        }
      } else {
        const Lanes* corner = a + j0 * n + j0;
        for (Index j = 0; j < kTile; ++j) {
          for (Index i = 0; i < kTile; ++i) {
            for (Index k = 0; k < j; ++k) c[i][j] -= c[i][k] * corner[j * n + k];
            c[i][j] *= inverse[j0 + j];
          }
        }
      }
      for (Index i = 0; i < kTile; ++i) {
        for (Index j = 0; j < kTile; ++j) a[(i0 + i) * n + j0 + j] = c[i][j];
      }
    }
  }
}

// Solves a x = b in place for the factor that `factorize` left. Cost 2 n² operations per lane.
inline void solve(const Lanes* a, Index n, const Lanes* inverse, Lanes* x) {
  for (Index i0 = 0; i0 < n; i0 += kTile) {
    Lanes sum[kTile];
    for (Index i = 0; i < kTile; ++i) sum[i] = x[i0 + i];
    const Lanes* rows = a + i0 * n;
    for (Index k = 0; k < i0; ++k) {
      for (Index i = 0; i < kTile; ++i) sum[i] -= rows[i * n + k] * x[k];
    }
    for (Index i = 0; i < kTile; ++i) {
      for (Index k = 0; k < i; ++k) sum[i] -= rows[i * n + i0 + k] * sum[k];
      sum[i] *= inverse[i0 + i];
    }
    for (Index i = 0; i < kTile; ++i) x[i0 + i] = sum[i];
  }
  for (Index i0 = n - kTile; i0 >= 0; i0 -= kTile) {
    const Lanes* rows = a + i0 * n;
    Lanes y[kTile];
    for (Index i = kTile - 1; i >= 0; --i) {
      y[i] = x[i0 + i];
      for (Index k = i + 1; k < kTile; ++k) y[i] -= rows[k * n + i0 + i] * y[k];
      y[i] *= inverse[i0 + i];
    }
    for (Index i = 0; i < kTile; ++i) x[i0 + i] = y[i];
    for (Index k = 0; k < i0; ++k) {
      Lanes rest = x[k];
      for (Index i = 0; i < kTile; ++i) rest -= rows[i * n + k] * y[i];
      x[k] = rest;
    }
  }
}

}  // namespace attnscope
