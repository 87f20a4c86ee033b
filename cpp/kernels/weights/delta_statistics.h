// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>

#include "matrix/matrix_view.h"

// What changed between two weight matrices, and how much of it is rounding.
namespace attnscope {

// What W(after) − W(before) is computed in: float64 where a side is, float32 otherwise.
template <class Before, class After>
using Difference =
    std::conditional_t<std::is_same_v<Before, double> || std::is_same_v<After, double>, double,
                       float>;

// Sums over the entries of a pair, additive over disjoint sets of them (`largest` by maximum).
struct DeltaSums {
  double energy = 0.0;         // Σ Δ²
  double before_energy = 0.0;  // Σ before²
  double product = 0.0;        // Σ Δ·before
  double before_steps = 0.0;   // Σ step(before)²
  double after_steps = 0.0;    // Σ step(after)²
  double unchanged = 0.0;      // entries with Δ = 0
  double largest = 0.0;        // max |Δ|
  bool finite = true;          // no entry of either side is NaN or infinite

  void add(const DeltaSums& other);
};

// Sums over one pair [m, n] of equal shape, any strides, m and n >= 1. step(w) is the distance of
// neighbours at |w| in the coarser of the two element types (the one with fewer bits behind the
// leading one): 2^(⌊log2|w|⌋ − bits), of the smallest normal number where |w| is below that. Unless
// `delta` is null, Δ is written to it, row i at delta + i·delta_stride. Where `finite` is false the
// sums mean nothing. Cost O(m·n), one read of both.
template <class Before, class After>
DeltaSums delta_sums(const MatrixView<Before>& before, const MatrixView<After>& after,
                     Difference<Before, After>* delta, Index delta_stride, RowScratch& scratch);

}  // namespace attnscope
