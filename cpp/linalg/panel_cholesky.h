// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "linalg/panels.h"

// The Cholesky factor of one matrix, A = UᵀU, in panels.
namespace attnscope {

// Numbers that the inverses of the diagonal blocks take.
template <class Number = double>
Index panel_inverses(Index n) {
  return panels_of<Number>(n) * PanelShape<Number>::kWidth * PanelShape<Number>::kWidth;
}

// U⁻¹ of the diagonal block whose first row is `block`, to `inverse`: kPanelRows rows at a time,
// from the last, whose sums do not wait for each other but for the triangle of their own columns.
template <class Number>
void invert_block(const Number* block, Number* inverse) {
  using Shape = PanelShape<Number>;
  using Vector = typename Shape::Vector;
  constexpr Index kWidth = Shape::kWidth, kVectors = Shape::kVectors, kLanes = Shape::kLanes;
  using Place = std::remove_cvref_t<decltype(typename Shape::Places{}[0])>;
  typename Shape::Places places;
  for (Index lane = 0; lane < kLanes; ++lane) places[lane] = static_cast<Place>(lane);
  for (Index first = kWidth - kPanelRows; first >= 0; first -= kPanelRows) {
    const Number* rows = block + first * kWidth;
    Vector c[kPanelRows][kVectors];
#pragma GCC unroll 8
    for (Index r = 0; r < kPanelRows; ++r) {
#pragma GCC unroll 3
      for (Index v = 0; v < kVectors; ++v)
        c[r][v] =
            places == static_cast<Place>(first + r - v * kLanes) ? broadcast(Number{1}) : Vector{};
    }
    for (Index q = first + kPanelRows; q < kWidth; ++q) {
      const Vector* below = lanes_at(static_cast<const Number*>(inverse) + q * kWidth);
#pragma GCC unroll 8
      for (Index r = 0; r < kPanelRows; ++r) {
        const Vector f = broadcast(rows[r * kWidth + q]);
#pragma GCC unroll 3
        for (Index v = 0; v < kVectors; ++v) c[r][v] -= f * below[v];
      }
    }
#pragma GCC unroll 8
    for (Index r = kPanelRows - 1; r >= 0; --r) {
      const Number scale = Number{1} / rows[r * kWidth + first + r];
      for (Index v = 0; v < kVectors; ++v) {
        c[r][v] *= scale;
        lanes_at(inverse + (first + r) * kWidth)[v] = c[r][v];
      }
#pragma GCC unroll 8
      for (Index p = 0; p < r; ++p) {
        const Number f = rows[p * kWidth + first + r];
        for (Index v = 0; v < kVectors; ++v) c[p][v] -= f * c[r][v];
      }
    }
  }
}

// The factor of kPanelRows rows of one panel, from vector kFirst on: `rows` are the panel's, `left`
// their columns of the panel in whose diagonal block they stand, `above` how many rows come before,
// `inverse` what the diagonal entries' inverses are, or null where the rows are those of the
// panel's own diagonal block: then false where the matrix is not positive definite.
template <Index kFirst, class Number>
[[gnu::always_inline]] inline bool factorize_rows(Number* panel, const Number* left, Index above,
                                                  const Number* inverse) {
  using Shape = PanelShape<Number>;
  using Vector = typename Shape::Vector;
  constexpr Index kWidth = Shape::kWidth, kVectors = Shape::kVectors, kLanes = Shape::kLanes;
  constexpr Index kLeft = kVectors - kFirst;
  Vector* rows = lanes_at(panel + above * kWidth) + kFirst;
  Vector c[kPanelRows][kLeft];
  rest_of_products<kWidth, kVectors, Number>(rows, left, panel + kFirst * kLanes, above, c);
  left += above * kWidth;
#pragma GCC unroll 8
  for (Index r = 0; r < kPanelRows; ++r) {
    Number scale;
    if (inverse == nullptr) {
      // Where these rows' columns stand in the panel.
      const Index column = static_cast<Index>(left - panel) - above * kWidth + r;
      Number row[kWidth];
      for (Index v = 0; v < kLeft; ++v) {
        for (Index k = 0; k < kLanes; ++k) row[(kFirst + v) * kLanes + k] = c[r][v][k];
      }
      const Number pivot = row[column];
      if (!(pivot > Number{0})) return false;
      scale = Number{1} / std::sqrt(pivot);
    } else {
      scale = inverse[r * kWidth + r];
    }
    for (Index v = 0; v < kLeft; ++v) {
      c[r][v] *= scale;
      rows[r * kVectors + v] = c[r][v];
    }
    // The rows' own triangle: its entries are in `left`, which is this panel where inverse is null.
#pragma GCC unroll 8
    for (Index q = r + 1; q < kPanelRows; ++q) {
      const Number f = left[r * kWidth + q];
      for (Index v = 0; v < kLeft; ++v) c[q][v] -= f * c[r][v];
    }
  }
  return true;
}

// Overwrites the upper triangle in `a` by its factor; `count` panels, whose columns past the matrix
// are those of the unit matrix. False when the matrix is not positive definite. Cost n³/3
// operations.
template <class Number>
bool panel_factorize(Number* a, Index count, Number* inverses) {
  using Shape = PanelShape<Number>;
  constexpr Index kWidth = Shape::kWidth, kLanes = Shape::kLanes;
  for (Index s = 0; s < count; ++s) {
    Number* panel = a + panel_offset<Number>(s);
    for (Index t = 0; t < s; ++t) {
      const Number* left = a + panel_offset<Number>(t);
      for (Index o = 0; o < kWidth; o += kPanelRows) {
        factorize_rows<0>(panel, left + o, t * kWidth + o,
                          inverses + t * kWidth * kWidth + o * (kWidth + 1));
      }
    }
    // Columns before a row are of no use in its own block.
    for (Index o = 0; o < kWidth; o += kPanelRows) {
      const Index above = s * kWidth + o;
      const Number* none = nullptr;
      const bool positive =
          o < kLanes       ? factorize_rows<0>(panel, panel + o, above, none)
          : o < 2 * kLanes ? factorize_rows<1>(panel, panel + o, above, none)
                           : factorize_rows<Shape::kVectors - 1>(panel, panel + o, above, none);
      if (!positive) return false;
    }
    invert_block<Number>(panel + s * kWidth * kWidth, inverses + s * kWidth * kWidth);
  }
  return true;
}

// xᵀ = xᵀB with a block of as many rows as a panel has columns.
template <class Number>
[[gnu::always_inline]] inline void multiply_block(const Number* block, Number* x) {
  using Shape = PanelShape<Number>;
  constexpr Index kVectors = Shape::kVectors;
  const auto* rows = lanes_at(block);
  typename Shape::Vector even[kVectors] = {}, odd[kVectors] = {};
  for (Index r = 0; r < Shape::kWidth; r += 2) {
    const auto f = broadcast(x[r]), g = broadcast(x[r + 1]);
    for (Index v = 0; v < kVectors; ++v) {
      even[v] += f * rows[r * kVectors + v];
      odd[v] += g * rows[(r + 1) * kVectors + v];
    }
  }
  for (Index v = 0; v < kVectors; ++v) lanes_at(x)[v] = even[v] + odd[v];
}

// x = Bx with such a block.
template <class Number>
[[gnu::always_inline]] inline void multiply_by_block(const Number* block, Number* x) {
  using Shape = PanelShape<Number>;
  using Vector = typename Shape::Vector;
  constexpr Index kVectors = Shape::kVectors, kLanes = Shape::kLanes;
  Vector vector[kVectors];
  for (Index v = 0; v < kVectors; ++v) vector[v] = lanes_at(x)[v];
  const Vector* rows = lanes_at(block);
  for (Index k = 0; k < Shape::kWidth; k += kLanes) {
    Vector part[kLanes];
#pragma GCC unroll 16
    for (Index r = 0; r < kLanes; ++r) {
      part[r] = rows[0] * vector[0];
#pragma GCC unroll 2
      for (Index v = 1; v < kVectors; ++v) part[r] += rows[v] * vector[v];
      rows += kVectors;
    }
    *lanes_at(x + k) = row_sums(part);
  }
}

// Solves A x = b in place for kCount vectors, as long as `count` panels on 64-byte boundaries; each
// gives the bits that it gives alone. Cost 2 n² operations each, while the factor is read once.
template <Index kCount, class Number>
void panel_solve(const Number* a, Index count, const Number* inverses,
                 Number* const (&vectors)[kCount]) {
  using Shape = PanelShape<Number>;
  using Vector = typename Shape::Vector;
  constexpr Index kWidth = Shape::kWidth, kVectors = Shape::kVectors, kLanes = Shape::kLanes;
  for (Index s = 0; s < count; ++s) {
    Vector even[kCount][kVectors], odd[kCount][kVectors] = {};
    for (Index c = 0; c < kCount; ++c) {
      for (Index v = 0; v < kVectors; ++v) even[c][v] = lanes_at(vectors[c] + s * kWidth)[v];
    }
    const Vector* rows = lanes_at(a + panel_offset<Number>(s));
    for (Index k = 0; k < s * kWidth; k += 2) {
#pragma GCC unroll 2
      for (Index c = 0; c < kCount; ++c) {
        const Vector f = broadcast(vectors[c][k]), g = broadcast(vectors[c][k + 1]);
#pragma GCC unroll 3
        for (Index v = 0; v < kVectors; ++v) {
          even[c][v] -= f * rows[v];
          odd[c][v] -= g * rows[kVectors + v];
        }
      }
      rows += 2 * kVectors;
    }
    for (Index c = 0; c < kCount; ++c) {
      Number* x = vectors[c] + s * kWidth;
      for (Index v = 0; v < kVectors; ++v) lanes_at(x)[v] = even[c][v] + odd[c][v];
      multiply_block(inverses + s * kWidth * kWidth, x);
    }
  }
  for (Index s = count - 1; s >= 0; --s) {
    Vector solved[kCount][kVectors];
    for (Index c = 0; c < kCount; ++c) {
      Number* x = vectors[c] + s * kWidth;
      multiply_by_block(inverses + s * kWidth * kWidth, x);
      for (Index v = 0; v < kVectors; ++v) solved[c][v] = lanes_at(x)[v];
    }
    const Vector* rows = lanes_at(a + panel_offset<Number>(s));
    // A panel's width is a multiple of kLanes, so no row is left over.
    for (Index k = 0; k < s * kWidth; k += kLanes) {
#pragma GCC unroll 2
      for (Index c = 0; c < kCount; ++c) {
        Vector part[kLanes];
#pragma GCC unroll 16
        for (Index r = 0; r < kLanes; ++r) {
          part[r] = rows[r * kVectors] * solved[c][0];
#pragma GCC unroll 2
          for (Index v = 1; v < kVectors; ++v) part[r] += rows[r * kVectors + v] * solved[c][v];
        }
        *lanes_at(vectors[c] + k) -= row_sums(part);
      }
      rows += kLanes * kVectors;
    }
  }
}

// The same of one vector.
template <class Number>
void panel_solve(const Number* a, Index count, const Number* inverses, Number* x) {
  panel_solve<1>(a, count, inverses, {x});
}

}  // namespace attnscope
