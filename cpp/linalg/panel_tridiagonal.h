// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "linalg/panels.h"
#include "matrix/padded_vectors.h"
#include "simd/memory.h"

// One symmetric matrix in panels made tridiagonal.
namespace attnscope {

// p = A u, of `count` panels whose diagonal blocks hold both triangles. Cost 2 n² operations for n²
// / 2 numbers read.
template <class Number>
void panel_product(const Number* a, Index count, const Number* u, Number* p) {
  using Shape = PanelShape<Number>;
  using Vector = typename Shape::Vector;
  constexpr Index kWidth = Shape::kWidth, kVectors = Shape::kVectors, kLanes = Shape::kLanes;
  std::fill(p, p + count * kWidth, Number{0});
  for (Index s = 0; s < count; ++s) {
    Vector of_panel[kVectors], sum[kVectors] = {};
#pragma GCC unroll 3
    for (Index v = 0; v < kVectors; ++v) of_panel[v] = lanes_at(u + s * kWidth)[v];
    const Vector* rows = lanes_at(a + panel_offset<Number>(s));
    Vector part[kLanes];
    for (Index k = 0; k < s * kWidth; k += kLanes) {
#pragma GCC unroll 16
      for (Index r = 0; r < kLanes; ++r) {
        const Vector f = broadcast(u[k + r]);
        part[r] = rows[0] * of_panel[0];
        sum[0] += f * rows[0];
#pragma GCC unroll 2
        for (Index v = 1; v < kVectors; ++v) {
          part[r] += rows[v] * of_panel[v];
          sum[v] += f * rows[v];
        }
        rows += kVectors;
      }
      *lanes_at(p + k) += row_sums(part);
    }
    Vector* to = lanes_at(p + s * kWidth);
#pragma GCC unroll 3
    for (Index v = 0; v < kVectors; ++v) to[v] += sum[v];
    for (Index v = 0; v < kVectors; ++v) {
#pragma GCC unroll 16
      for (Index r = 0; r < kLanes; ++r) {
        part[r] = rows[0] * of_panel[0];
#pragma GCC unroll 2
        for (Index w = 1; w < kVectors; ++w) part[r] += rows[w] * of_panel[w];
        rows += kVectors;
      }
      to[v] += row_sums(part);
    }
  }
}

// A −= Σ_k left_k right_kᵀ over `terms` pairs of vectors, in `count` panels. left[g][k] holds rows
// [g·kPanelRows, (g + 1)·kPanelRows) of left_k, right[s][k] panel s of right_k. Cost 2 · terms
// operations for each number of the panels.
inline void panel_update(double* a, Index count, Index terms, const double* left,
                         const double* right) {
  for (Index s = 0; s < count; ++s) {
    double* panel = a + panel_offset(s);
    for (Index i0 = 0; i0 < (s + 1) * kPanel; i0 += kPanelRows) {
      Lanes* rows = lanes_at(panel + i0 * kPanel);
      Lanes c[kPanelRows][kPanelVectors];
      rest_of_products<kPanelRows, kPanelVectors>(rows, left + i0 * terms,
                                                  right + s * terms * kPanel, terms, c);
#pragma GCC unroll 8
      for (Index r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 3
        for (Index v = 0; v < kPanelVectors; ++v) rows[r * kPanelVectors + v] = c[r][v];
      }
    }
  }
}

// x −= Σ_k factors[k] · basis_k, four at a time so that x is read once for four.
inline void subtract_multiples(const double* basis, const double* factors, Index count,
                               Index padded, Index size, double* x) {
  assert(size >= 0 && size % kPackWidth == 0);
  Lanes* to = lanes_at(x);
  for (Index c = 0; c < count; c += 4) {
    const Lanes* q[4];
    Lanes f[4];
    for (Index k = 0; k < 4; ++k) {
      const bool exists = c + k < count;
      q[k] = lanes_at(basis + (exists ? c + k : c) * padded);
      f[k] = broadcast(exists ? factors[c + k] : 0.0);
    }
    for (Index i = 0; i < size / kPackWidth; ++i) {
      to[i] -= (f[0] * q[0][i] + f[1] * q[1][i]) + (f[2] * q[2][i] + f[3] * q[3][i]);
    }
  }
}

// products[k] = basis_k · x, four at a time.
inline void inner_products(const double* basis, Index count, Index padded, Index size,
                           const double* x, double* products) {
  assert(size >= 0 && size % kPackWidth == 0);
  const Lanes* from = lanes_at(x);
  for (Index c = 0; c < count; c += 4) {
    const Lanes* q[4];
    for (Index k = 0; k < 4; ++k) q[k] = lanes_at(basis + (c + k < count ? c + k : c) * padded);
    Lanes sums[4] = {};
    for (Index i = 0; i < size / kPackWidth; ++i) {
      for (Index k = 0; k < 4; ++k) sums[k] += q[k][i] * from[i];
    }
    for (Index k = 0; k < std::min(Index{4}, count - c); ++k)
      products[c + k] = sum_of_lanes(sums[k]);
  }
}

// Reduces the symmetric matrix of n rows in `a`, whose diagonal blocks hold both triangles and
// whose columns from n on are 0, to tridiagonal form by Householder reflections: diagonal[i·stride]
// and beside[i·stride], i < n − 1. Destroys `a`.
//
// From the last column to the first, so that what is left begins where the panels begin. The
// reflections of a panel are applied to single columns and vectors, and to the panels before it at
// its end by one matrix product: half of the 4/3 n³ operations, while the other half, a product
// with a vector each step, reads the matrix once and writes nothing (Dongarra, Sorensen and
// Hammarling 1989).
inline void panel_tridiagonalize(double* a, Index n, double* diagonal, double* beside, Index stride,
                                 AlignedBuffer& scratch) {
  const Index padded = panels_of(n) * kPanel;
  // Reflection v and its w, A −= v wᵀ + w vᵀ, one after the other.
  double* basis = scratch.resize((6 * kPanel + 1) * padded);
  double* left = basis + 2 * kPanel * padded;
  double* right = left + 2 * kPanel * padded;
  double* column = right + 2 * kPanel * padded;
  double factors[2 * kPanel], swapped[2 * kPanel];
  for (Index begin = padded - kPanel, end = n; begin >= 0; end = begin, begin -= kPanel) {
    Index steps = 0;  // reflections of this panel
    for (Index k = end - 1; k >= begin; --k) {
      const Index size = panels_of(k + 1) * kPanel;
      const double* entries = a + panel_entry(0, k);
      for (Index i = 0; i <= k; ++i) column[i] = entries[i * kPanel];
      std::fill(column + k + 1, column + size, 0.0);
      for (Index t = 0; t < steps; ++t) {
        factors[2 * t] = basis[(2 * t + 1) * padded + k];
        factors[2 * t + 1] = basis[2 * t * padded + k];
      }
      subtract_multiples(basis, factors, 2 * steps, padded, size, column);
      diagonal[k * stride] = column[k];
      if (k == 0) break;
      double* u = basis + 2 * steps * padded;
      double* w = u + padded;
      std::copy(column, column + k - 1, u);
      std::fill(u + k - 1, u + padded, 0.0);
      const double head = column[k - 1];
      const double tail = inner_product(u, u, size);
      // A column that is already zero above its head, or whose square cannot be told from zero,
      // stays.
      if (!(tail > 1e-280)) {
        beside[(k - 1) * stride] = head;
        continue;
      }
      const double norm = std::sqrt(head * head + tail);
      const double alpha = head > 0.0 ? -norm : norm;
      beside[(k - 1) * stride] = alpha;
      const double tau = (alpha - head) / alpha;
      scale_vector(u, 1.0 / (head - alpha), size);
      u[k - 1] = 1.0;
      panel_product(a, panels_of(k), u, w);
      inner_products(basis, 2 * steps, padded, size, u, factors);
      for (Index t = 0; t < steps; ++t) {
        swapped[2 * t] = factors[2 * t + 1];
        swapped[2 * t + 1] = factors[2 * t];
      }
      std::fill(w + panels_of(k) * kPanel, w + padded, 0.0);
      subtract_multiples(basis, swapped, 2 * steps, padded, size, w);
      std::fill(w + k, w + padded, 0.0);  // rows that are finished
      const double half = -0.5 * tau * tau * inner_product(w, u, size);
      scale_vector(w, tau, size);
      add_multiple(w, half, u, size);
      ++steps;
    }
    const Index count = begin / kPanel;
    const Index terms = 2 * steps;
    for (Index t = 0; t < terms; ++t) {
      const double* v = basis + t * padded;
      const double* w = basis + (t ^ 1) * padded;
      for (Index i = 0; i < begin; ++i) {
        left[(i / kPanelRows * terms + t) * kPanelRows + i % kPanelRows] = v[i];
        right[(i / kPanel * terms + t) * kPanel + i % kPanel] = w[i];
      }
    }
    panel_update(a, count, terms, left, right);
  }
}

}  // namespace attnscope
