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

  // A place on the axis, its angle, F there, and ∫_0^x F, which goes on past the edge, to 1e-13
  // (5e-13 with a table).
  struct Point {
    double x, angle, cdf, integral;
  };
  Point at(double x) const;
  // The point where F reaches u, 0 < u < 1.
  Point quantile(double u) const;

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
// decide at which points the exact value is worth its cost, starts the solver where it is worth it,
// and interpolates where 1e-13 will do.
class TriangularTable {
 public:
  TriangularTable();
  struct Bracket {
    double low, high;  // at most 0.0008 apart
  };
  // Of F over [from, to], which is short.
  Bracket cdf(double from, double to) const;

  // The angle of x, 0 < x < e: so near that F there is right to 1e-13, below x = 1e-15 to 2e-10.
  double angle(double x) const;
  // As those of NullLaw.
  NullLaw::Point at(double x) const;
  NullLaw::Point quantile(double u) const;

 private:
  struct Node {
    double x;
    double cdf, cdf_slope;  // slopes by the angle
    double integral, integral_slope;
    double height, square_slope;  // of the square of the angle by the height
  };
  struct Cell;

  Index above(double x) const;  // the first node above x, 0 < x < e
  Cell cell_of(double angle) const;

  // By the leading bits of x: where the search for the first node above begins.
  std::vector<std::uint16_t> starts_;
  std::vector<Node> nodes_;  // by rising x
};

}  // namespace attnscope
