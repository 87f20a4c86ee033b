// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/base/strips.h"

// The Cholesky factor of one matrix, A = UᵀU, in strips.
namespace attnscope {

// Numbers that the inverses of the diagonal blocks take, each twice: as it is and transposed.
inline Index strip_inverses(Index n) { return strips_of(n) * 2 * kStrip * kStrip; }

// R = U⁻¹ of the diagonal block whose first row is `block`, to `inverse`, and Rᵀ behind it.
inline void invert_block(const double* block, double* inverse) {
  double* transposed = inverse + kStrip * kStrip;
  for (Index r = kStrip - 1; r >= 0; --r) {
    Lanes row[kStripVectors] = {};
    for (Index q = r + 1; q < kStrip; ++q) {
      const double factor = block[r * kStrip + q];
      const Lanes* below = lanes_at(inverse + q * kStrip);
      for (Index v = 0; v < kStripVectors; ++v) row[v] -= factor * below[v];
    }
    const double scale = 1.0 / block[r * kStrip + r];
    Lanes* to = lanes_at(inverse + r * kStrip);
    for (Index v = 0; v < kStripVectors; ++v) to[v] = row[v] * scale;
    inverse[r * kStrip + r] = scale;
    for (Index q = 0; q < kStrip; ++q) transposed[q * kStrip + r] = inverse[r * kStrip + q];
  }
}

// Overwrites the upper triangle in `a` by its factor; `count` strips, whose columns past the matrix are
// those of the unit matrix. False when the matrix is not positive definite. Cost n³/3 operations.
inline bool strip_factorize(double* a, Index count, double* inverses) {
  for (Index s = 0; s < count; ++s) {
    double* strip = a + strip_offset(s);
    for (Index t = 0; t <= s; ++t) {
      const double* left = a + strip_offset(t);
      for (Index o = 0; o < kStrip; o += kStripRows) {
        const Index i0 = t * kStrip + o;
        Lanes* rows = lanes_at(strip + i0 * kStrip);
        Lanes c[kStripRows][kStripVectors];
        rest_of_products<kStrip>(rows, left + o, strip, i0, c);
        // The rows' own triangle: its entries are in `left`, which is this strip where t == s.
#pragma GCC unroll 8
        for (Index r = 0; r < kStripRows; ++r) {
          double scale;
          if (t == s) {
            double row[kStrip];
            for (Index v = 0; v < kStripVectors; ++v) {
              for (Index k = 0; k < kPackWidth; ++k) row[v * kPackWidth + k] = c[r][v][k];
            }
            const double pivot = row[o + r];
            if (!(pivot > 0.0)) return false;
            scale = 1.0 / std::sqrt(pivot);
          } else {
            scale = inverses[t * 2 * kStrip * kStrip + (o + r) * kStrip + o + r];
          }
          for (Index v = 0; v < kStripVectors; ++v) {
            c[r][v] *= scale;
            rows[r * kStripVectors + v] = c[r][v];
          }
#pragma GCC unroll 8
          for (Index q = r + 1; q < kStripRows; ++q) {
            const double f = left[(i0 + r) * kStrip + o + q];
            for (Index v = 0; v < kStripVectors; ++v) c[q][v] -= f * c[r][v];
          }
        }
      }
    }
    double* inverse = inverses + s * 2 * kStrip * kStrip;
    std::fill(inverse, inverse + 2 * kStrip * kStrip, 0.0);
    invert_block(strip + s * kStrip * kStrip, inverse);
  }
  return true;
}

// Solves A x = b in place, x [kStrip · count] on a 64-byte boundary. Cost 2 n² operations.
inline void strip_solve(const double* a, Index count, const double* inverses, double* x) {
  for (Index s = 0; s < count; ++s) {
    Lanes* own = lanes_at(x + s * kStrip);
    Lanes even[kStripVectors], odd[kStripVectors] = {};
    for (Index v = 0; v < kStripVectors; ++v) even[v] = own[v];
    const Lanes* rows = lanes_at(a + strip_offset(s));
    for (Index k = 0; k < s * kStrip; k += 2) {
      const Lanes f = broadcast(x[k]), g = broadcast(x[k + 1]);
#pragma GCC unroll 3
      for (Index v = 0; v < kStripVectors; ++v) {
        even[v] -= f * rows[v];
        odd[v] -= g * rows[kStripVectors + v];
      }
      rows += 2 * kStripVectors;
    }
    for (Index v = 0; v < kStripVectors; ++v) own[v] = even[v] + odd[v];
    const Lanes* inverse = lanes_at(inverses + s * 2 * kStrip * kStrip);
    Lanes solved[kStripVectors] = {}, rest[kStripVectors] = {};
    for (Index r = 0; r < kStrip; r += 2) {
      const Lanes f = broadcast(x[s * kStrip + r]), g = broadcast(x[s * kStrip + r + 1]);
      for (Index v = 0; v < kStripVectors; ++v) {
        solved[v] += f * inverse[r * kStripVectors + v];
        rest[v] += g * inverse[(r + 1) * kStripVectors + v];
      }
    }
    for (Index v = 0; v < kStripVectors; ++v) own[v] = solved[v] + rest[v];
  }
  for (Index s = count - 1; s >= 0; --s) {
    Lanes* own = lanes_at(x + s * kStrip);
    const Lanes* inverse = lanes_at(inverses + (2 * s + 1) * kStrip * kStrip);
    Lanes solved[kStripVectors] = {}, rest[kStripVectors] = {};
    for (Index r = 0; r < kStrip; r += 2) {
      const Lanes f = broadcast(x[s * kStrip + r]), g = broadcast(x[s * kStrip + r + 1]);
      for (Index v = 0; v < kStripVectors; ++v) {
        solved[v] += f * inverse[r * kStripVectors + v];
        rest[v] += g * inverse[(r + 1) * kStripVectors + v];
      }
    }
    for (Index v = 0; v < kStripVectors; ++v) own[v] = solved[v] += rest[v];
    const Lanes* rows = lanes_at(a + strip_offset(s));
    // kStrip is a multiple of kPackWidth, so no row is left over.
    for (Index k = 0; k < s * kStrip; k += kPackWidth) {
      Lanes part[kPackWidth];
#pragma GCC unroll 8
      for (Index r = 0; r < kPackWidth; ++r) {
        part[r] = rows[0] * solved[0] + rows[1] * solved[1] + rows[2] * solved[2];
        rows += kStripVectors;
      }
      *lanes_at(x + k) -= row_sums(part);
    }
  }
}

}  // namespace attnscope
