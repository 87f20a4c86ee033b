// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

// The limit law F of the eigenvalues of XXᵀ/n for X with n columns and independent entries of
// variance 1 on its support. All laws are followed by a number t that falls as x rises and is 0 at
// the upper edge: an angle that is π at the lower edge, or for the trapezoid p_up − p.
//
//  * Marchenko–Pastur, full support, 0 < γ = rows/columns <= 1 (Marčenko and Pastur 1967):
//    x(t) = 1 + γ + 2√γ cos t, on [(1−√γ)², (1+√γ)²].
//  * triangular, causal support (Dykema and Haagerup, DT-operators and decomposability of
//    Voiculescu's circular operator, 2004): x(t) = (sin t/t)·exp(t cot t), on [0, e],
//    F = 1 − t/π + sin²t/(πt).
//  * trapezoid, causal support of the last c·n of n queries, 0 < c < 1, of which c = 1 is the
//    triangle: the resolvent of a variance profile solves m(z) = (e^{−s} − 1)/c with z = e^s·(1 − c
//    + c/s). z is real on the curve s = p + iv with (1−c)(p² + v²) + cp = cv·cot v, between the
//    roots p of v = 0, and F = 1 − [(1−c)v + c·arg s − cv/|s|²]/(πc) there.
class TriangularTable;

class NullLaw {
 public:
  static NullLaw marchenko_pastur(double gamma) { return {Kind::marchenko_pastur, gamma, nullptr}; }
  // With a table, which must outlive the law, values come several times sooner.
  static NullLaw triangular(const TriangularTable* table = nullptr) {
    return {Kind::triangular, 1.0, table};
  }

  static NullLaw trapezoid(double aspect) { return {Kind::trapezoid, aspect, nullptr}; }

  // Its table, null for a law that has none.
  const TriangularTable* table() const { return table_; }

  // A place on the axis: F(x), and ∫_0^x F, which goes on past the edge, to 1e-13 (5e-12 with a
  // table).
  struct Point {
    double x, cdf, integral;
  };
  Point at(double x) const;
  // The point between `left` and `right` where F reaches u, left.cdf < u < right.cdf.
  Point crossing(double u, const Point& left, const Point& right) const;

  // The place at an angle, from `angle(x)` down to 0 at the upper edge: F there, and a density that
  // is not less there or anywhere above it (infinite for the trapezoid, whose is not known).
  struct Place {
    double x, cdf, density;
  };
  Place place(double angle) const;
  // The angle of x: that of the nearest end of the support where x lies outside it.
  double angle(double x) const;

  bool operator==(const NullLaw&) const = default;

  // Upper end of the support.
  double edge() const;
  // What F rises by at most for a step of √x; infinite where F has no such bound or none is known.
  double steepest_by_root() const;
  // F(x), to 1e-14; 0 below the support and 1 above.
  double cdf(double x) const;

 private:
  friend class TriangularTable;
  enum class Kind { marchenko_pastur, triangular, trapezoid };
  NullLaw(Kind kind, double gamma, const TriangularTable* table)
      : kind_(kind), gamma_(gamma), table_(table) {}

  double mean() const;
  double value_at(double angle) const;
  double cdf_at(double angle) const;
  double integral_at(double x, double angle) const;

  Kind kind_;
  double gamma_;
  const TriangularTable* table_;
};

// The triangular law at equal steps of its angle. It brackets F without solving for the angle, to
// decide at which points the exact value is worth its cost, and starts the solver where it is worth
// it.
class TriangularTable {
 public:
  TriangularTable();
  struct Bracket {
    double low, high;  // at most 0.0016 apart
  };
  // Of F over [from, to], which is short.
  Bracket cdf(double from, double to) const;

 private:
  friend class NullLaw;
  double angle_near(double x) const;       // to about 1e-5, 0 < x < e
  double integral_at(double angle) const;  // ∫_0^{x(angle)} F, to 5e-12

  Index above(double x) const;  // the first point above x, 0 < x < e

  // By the leading bits of x: where the search for the first point above begins.
  std::vector<std::uint16_t> starts_;
  // by rising x
  std::vector<double> points_;
  std::vector<double> logarithms_;
  std::vector<double> cdf_;
  std::vector<double> integrals_;
  std::vector<double> slopes_;  // of the integral by the angle
};

}  // namespace attnscope
