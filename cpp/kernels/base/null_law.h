// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "kernels/base/matrix_view.h"

namespace attnscope {

// The limit law F of the eigenvalues of XXᵀ/n for X with independent entries of variance 1 on its
// support. Both laws are followed by an angle t in [0, π] that falls as x rises: t = π is the lower edge
// and t = 0 the upper edge.
//
//  * Marchenko–Pastur, full support, 0 < γ = rows/columns <= 1 (Marčenko and Pastur 1967):
//    x(t) = 1 + γ + 2√γ cos t, on [(1−√γ)², (1+√γ)²].
//  * triangular, causal support (Dykema and Haagerup, DT-operators and decomposability of Voiculescu's
//    circular operator, 2004): x(t) = (sin t/t)·exp(t cot t), F = 1 − t/π + sin²t/(πt), on [0, e].
class NullLaw {
 public:
  static NullLaw marchenko_pastur(double gamma);
  static NullLaw triangular();

  // Upper end of the support.
  double edge() const;
  // F(x), to 1e-14; 0 below the support and 1 above.
  double cdf(double x) const;
  // ∫_0^x F, to 1e-13; x above the edge is allowed.
  double integral(double x) const;
  // The x with F(x) = u, 0 <= u <= 1.
  double quantile(double u) const;

 private:
  enum class Kind { marchenko_pastur, triangular };
  NullLaw(Kind kind, double gamma) : kind_(kind), gamma_(gamma) {}

  double angle(double x) const;
  double value_at(double angle) const;
  double cdf_at(double angle) const;

  Kind kind_;
  double gamma_;
};

// The triangular law at equal steps of its angle: brackets F without solving for the angle, to decide at
// which points the exact value is worth its cost.
class TriangularTable {
 public:
  TriangularTable();
  struct Bracket {
    double low, high;  // at most 0.0016 apart
  };
  Bracket cdf(double x) const;

 private:
  std::vector<double> points_;  // ascending
  std::vector<double> cdf_;
};

}  // namespace attnscope
