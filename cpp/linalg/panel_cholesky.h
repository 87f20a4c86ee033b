// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "linalg/panels.h"

// The Cholesky factor of one matrix, A = UᵀU, in panels.
namespace attnscope {

// Numbers that the inverses of the diagonal blocks take, each twice: as it is and transposed.
inline Index panel_inverses(Index n) { return panels_of(n) * 2 * kPanel * kPanel; }

// R = U⁻¹ of the diagonal block whose first row is `block`, to `inverse`, and Rᵀ behind it.
inline void invert_block(const double* block, double* inverse) {
  double* transposed = inverse + kPanel * kPanel;
  for (Index r = kPanel - 1; r >= 0; --r) {
    Lanes row[kPanelVectors] = {};
    for (Index q = r + 1; q < kPanel; ++q) {
      const double factor = block[r * kPanel + q];
      const Lanes* below = lanes_at(inverse + q * kPanel);
      for (Index v = 0; v < kPanelVectors; ++v) row[v] -= factor * below[v];
    }
    const double scale = 1.0 / block[r * kPanel + r];
    Lanes* to = lanes_at(inverse + r * kPanel);
    for (Index v = 0; v < kPanelVectors; ++v) to[v] = row[v] * scale;
    inverse[r * kPanel + r] = scale;
    for (Index q = 0; q < kPanel; ++q) transposed[q * kPanel + r] = inverse[r * kPanel + q];
  }
}

// Overwrites the upper triangle in `a` by its factor; `count` panels, whose columns past the matrix
// are those of the unit matrix. False when the matrix is not positive definite. Cost n³/3
// operations.
inline bool panel_factorize(double* a, Index count, double* inverses) {
  for (Index s = 0; s < count; ++s) {
    double* panel = a + panel_offset(s);
    for (Index t = 0; t <= s; ++t) {
      const double* left = a + panel_offset(t);
      for (Index o = 0; o < kPanel; o += kPanelRows) {
        const Index i0 = t * kPanel + o;
        Lanes* rows = lanes_at(panel + i0 * kPanel);
        Lanes c[kPanelRows][kPanelVectors];
        rest_of_products<kPanel>(rows, left + o, panel, i0, c);
        // The rows' own triangle: its entries are in `left`, which is this panel where t == s.
#pragma GCC unroll 8
        for (Index r = 0; r < kPanelRows; ++r) {
          double scale;
          if (t == s) {
            double row[kPanel];
            for (Index v = 0; v < kPanelVectors; ++v) {
              for (Index k = 0; k < kPackWidth; ++k) row[v * kPackWidth + k] = c[r][v][k];
            }
            const double pivot = row[o + r];
            if (!(pivot > 0.0)) return false;
            scale = 1.0 / std::sqrt(pivot);
          } else {
            scale = inverses[t * 2 * kPanel * kPanel + (o + r) * kPanel + o + r];
          }
          for (Index v = 0; v < kPanelVectors; ++v) {
            c[r][v] *= scale;
            rows[r * kPanelVectors + v] = c[r][v];
          }
#pragma GCC unroll 8
          for (Index q = r + 1; q < kPanelRows; ++q) {
            const double f = left[(i0 + r) * kPanel + o + q];
            for (Index v = 0; v < kPanelVectors; ++v) c[q][v] -= f * c[r][v];
          }
        }
      }
    }
    double* inverse = inverses + s * 2 * kPanel * kPanel;
    std::fill(inverse, inverse + 2 * kPanel * kPanel, 0.0);
    invert_block(panel + s * kPanel * kPanel, inverse);
  }
  return true;
}

// xᵀ = xᵀB with a block of kPanel rows.
[[gnu::always_inline]] inline void multiply_block(const double* block, Lanes* x) {
  const Lanes* rows = lanes_at(block);
  const double* numbers = reinterpret_cast<const double*>(x);
  Lanes even[kPanelVectors] = {}, odd[kPanelVectors] = {};
  for (Index r = 0; r < kPanel; r += 2) {
    const Lanes f = broadcast(numbers[r]), g = broadcast(numbers[r + 1]);
    for (Index v = 0; v < kPanelVectors; ++v) {
      even[v] += f * rows[r * kPanelVectors + v];
      odd[v] += g * rows[(r + 1) * kPanelVectors + v];
    }
  }
  for (Index v = 0; v < kPanelVectors; ++v) x[v] = even[v] + odd[v];
}

// Solves A x = b in place, x [kPanel · count] on a 64-byte boundary. Cost 2 n² operations.
inline void panel_solve(const double* a, Index count, const double* inverses, double* x) {
  for (Index s = 0; s < count; ++s) {
    Lanes* own = lanes_at(x + s * kPanel);
    Lanes even[kPanelVectors], odd[kPanelVectors] = {};
    for (Index v = 0; v < kPanelVectors; ++v) even[v] = own[v];
    const Lanes* rows = lanes_at(a + panel_offset(s));
    for (Index k = 0; k < s * kPanel; k += 2) {
      const Lanes f = broadcast(x[k]), g = broadcast(x[k + 1]);
#pragma GCC unroll 3
      for (Index v = 0; v < kPanelVectors; ++v) {
        even[v] -= f * rows[v];
        odd[v] -= g * rows[kPanelVectors + v];
      }
      rows += 2 * kPanelVectors;
    }
    for (Index v = 0; v < kPanelVectors; ++v) own[v] = even[v] + odd[v];
    multiply_block(inverses + s * 2 * kPanel * kPanel, own);
  }
  for (Index s = count - 1; s >= 0; --s) {
    Lanes* own = lanes_at(x + s * kPanel);
    multiply_block(inverses + (2 * s + 1) * kPanel * kPanel, own);
    const Lanes solved[] = {own[0], own[1], own[2]};
    const Lanes* rows = lanes_at(a + panel_offset(s));
    // kPanel is a multiple of kPackWidth, so no row is left over.
    for (Index k = 0; k < s * kPanel; k += kPackWidth) {
      Lanes part[kPackWidth];
#pragma GCC unroll 8
      for (Index r = 0; r < kPackWidth; ++r) {
        part[r] = rows[0] * solved[0] + rows[1] * solved[1] + rows[2] * solved[2];
        rows += kPanelVectors;
      }
      *lanes_at(x + k) -= row_sums(part);
    }
  }
}

}  // namespace attnscope
