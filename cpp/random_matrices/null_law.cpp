// SPDX-License-Identifier: MIT
#include "random_matrices/null_law.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>

namespace attnscope {
namespace {

using std::numbers::e;
using std::numbers::pi;

// The table's steps of the angle.
constexpr Index kSteps = 2048;
constexpr double kStep = pi / kSteps;
// A slot is a 64th of an octave; the first begins at 2^-44, and below it the points are few.
constexpr int kSlotShift = 46;
constexpr auto kFirstSlot = static_cast<Index>(std::bit_cast<std::uint64_t>(0x1p-44) >> kSlotShift);
constexpr auto kLastSlot = static_cast<Index>(std::bit_cast<std::uint64_t>(e) >> kSlotShift);

// sin t / t
double sinc(double t) { return t < 1e-8 ? 1.0 : std::sin(t) / t; }

// t cot t, which is 1 at 0 and falls to −∞ at π.
double t_cot(double t) { return t < 1e-8 ? 1.0 : t * std::cos(t) / std::sin(t); }

// ln x(t) of the triangular law.
double log_triangular(double t) { return std::log(sinc(t)) + t_cot(t); }

// d ln x/dt = −(t² − 2t·sin t·cos t + sin²t)/(t·sin²t), which tends to −0 at t = 0 as −t.
double log_triangular_slope(double t) {
  if (t < 1e-3) return -t;
  const double s = std::sin(t);
  return -(t * t - 2.0 * t * s * std::cos(t) + s * s) / (t * s * s);
}

// x(t) of the triangular law, of whose angle s is the sine and c the cosine, 0 < t < π.
double triangular_value(double t, double s, double c) { return s / t * std::exp(t * c / s); }

// The same for every angle.
double triangular_value(double t) {
  if (t < 1e-8) return e;
  return t >= pi ? 0.0 : triangular_value(t, std::sin(t), std::cos(t));
}

// dF/dt of the triangular law.
double triangular_cdf_slope(double t) {
  const double s = std::sin(t);
  return -(1.0 - 2.0 * s * std::cos(t) / t + s * s / (t * t)) / pi;
}

// In this function of ln x, which is 0 at x = 0 and 1 at the upper edge, the square of the angle is
// smooth from end to end.
double height_of(double log_x) { return 1.0 / (2.0 - log_x); }

double angle_of_node(Index node) { return pi - kStep * static_cast<double>(node); }

// The cubic on [0, 1] with these values and slopes at both ends (Hermite).
class Cubic {
 public:
  Cubic(double from, double to, double out, double in)
      : constant_(from),
        linear_(out),
        square_(3.0 * (to - from) - 2.0 * out - in),
        cube_(out + in - 2.0 * (to - from)) {}
  double at(double s) const { return constant_ + s * (linear_ + s * (square_ + s * cube_)); }
  double slope_at(double s) const { return linear_ + s * (2.0 * square_ + 3.0 * s * cube_); }

 private:
  double constant_, linear_, square_, cube_;
};

// The root of the decreasing function f on [low, high]: Newton, with bisection where a step leaves
// the bracket, so it ends for every target.
template <class F, class Slope>
double decreasing_root(F&& f, Slope&& slope, double target, double low, double high, double guess) {
  double t = guess;
  for (int step = 0; step < 200; ++step) {
    const double difference = f(t) - target;
    if (difference > 0.0) {
      low = t;
    } else {
      high = t;
    }
    double next = t - difference / slope(t);
    const bool inside = next > low && next < high;
    if (!inside) next = 0.5 * (low + high);
    const double move = std::abs(next - t);
    t = next;
    // A Newton step this small leaves an error of its square.
    if ((inside && move <= 1e-9 * t) || high - low <= 4e-16 * high) break;
  }
  return t;
}

// Im E1(z), |z| >= 1, −π < Im z <= 0, away from the negative axis except where |z| is small enough
// for the series (Abramowitz and Stegun 5.1.11, 5.1.22).
double imaginary_e1(std::complex<double> z) {
  if (std::abs(z) <= 5.0) {
    // −γ − ln z − Σ (−z)^k/(k·k!); the first is real.
    std::complex<double> term = 1.0;
    double sum = 0.0;
    for (int k = 1; k < 80; ++k) {
      term *= -z / static_cast<double>(k);
      sum += term.imag() / k;
      if (std::abs(term) < 1e-18 * k) break;
    }
    return -std::arg(z) - sum;
  }
  // e^{−z}/(z + 1 − 1/(z + 3 − 4/(z + 5 − …))), by Lentz's method.
  std::complex<double> b = z + 1.0;
  std::complex<double> c = 1e300;
  std::complex<double> d = 1.0 / b;
  std::complex<double> h = d;
  for (int k = 1; k < 200; ++k) {
    const double a = -static_cast<double>(k) * k;
    b += 2.0;
    d = 1.0 / (a * d + b);
    c = b + a / c;
    const std::complex<double> factor = c * d;
    h *= factor;
    if (std::abs(factor - 1.0) < 1e-16) break;
  }
  return (h * std::exp(-z)).imag();
}

// The curve of the trapezoid law for an aspect c.
class TrapezoidCurve {
 public:
  explicit TrapezoidCurve(double c) : c_(c), root_(std::sqrt(c * c + 4.0 * c * (1.0 - c))) {}

  double upper() const { return 2.0 * c_ / (c_ + root_); }
  double lower() const { return -(c_ + root_) / (2.0 * (1.0 - c_)); }
  double longest() const { return upper() - lower(); }

  // The point s of the upper half plane with this real part.
  std::complex<double> at(double p) const {
    const double fixed = (1.0 - c_) * p * p + c_ * p;
    if (!(fixed < c_)) return {p, 0.0};
    const double v = decreasing_root(
        [&](double u) { return c_ * t_cot(u) - (1.0 - c_) * u * u; },
        [&](double u) {
          const double s = std::sin(u);
          return c_ * (std::cos(u) / s - u / (s * s)) - 2.0 * (1.0 - c_) * u;
        },
        fixed, 0.0, pi, std::min(3.0, std::sqrt((c_ - fixed) / (1.0 - 2.0 * c_ / 3.0))));
    return {p, v};
  }
  // z = e^s·factor(s), which is real and above 0 on the curve.
  std::complex<double> factor(std::complex<double> s) const { return 1.0 - c_ + c_ / s; }
  double log_value(double p) const {
    const std::complex<double> s = at(p);
    return p + std::log(std::abs(factor(s)));
  }
  // d ln x/dp along the curve, dx/dp = |z'|²/Re z'.
  double log_slope(double p) const {
    const std::complex<double> s = at(p);
    const std::complex<double> w = 1.0 - c_ / (s * s) / factor(s);
    return std::norm(w) / w.real();
  }
  double cdf(double p) const {
    const std::complex<double> s = at(p);
    const double v = s.imag();
    return 1.0 - ((1.0 - c_) * v + c_ * std::arg(s) - c_ * v / std::norm(s)) / (pi * c_);
  }
  double density(double p) const { return std::exp(-p) * std::sin(at(p).imag()) / (pi * c_); }
  // ∫ y dF from the point to the upper edge: Im A(s)/(πc) with A' = z·e^{−s}·dz/ds.
  double upper_moment(double p) const {
    const std::complex<double> s = at(p);
    const std::complex<double> power = std::exp(s);
    const double open = 1.0 - c_;
    const std::complex<double> elementary = power * (open * open - (c_ * c_ - c_ * open) / s +
                                                     0.5 * c_ * c_ * (1.0 / s + 1.0 / (s * s)));
    const double integral = pi - imaginary_e1(-s);  // Im Ei(s)
    return (elementary.imag() + (c_ - 0.5 * c_ * c_) * integral) / (pi * c_);
  }

 private:
  double c_;
  double root_;
};

// F of the Marchenko–Pastur law at the angle t, of whose half s is the sine and c the cosine:
// (2/π)∫_t^π sin²u/(1 + γ + 2√γ cos u) du.
double marchenko_pastur_cdf(double gamma, double t, double s, double c) {
  const double root = std::sqrt(gamma);
  const double q = (1.0 - root) / (1.0 + root);
  const double atom = gamma < 1.0 ? 2.0 * (1.0 - gamma) * std::atan2(c, q * s) : 0.0;
  const double bulk = (1.0 + gamma) * (pi - t) + 4.0 * root * s * c;
  return std::clamp((bulk - atom) / (2.0 * pi * gamma), 0.0, 1.0);
}

// ∫ x dF of it from the lower edge to the angle t, of which s is the sine and c the cosine.
double marchenko_pastur_moment(double t, double s, double c) { return (pi - t + s * c) / pi; }

}  // namespace

// The mean of the entries' variances.
double NullLaw::mean() const {
  if (kind_ == Kind::triangular) return 0.5;
  return kind_ == Kind::trapezoid ? 1.0 - 0.5 * gamma_ : 1.0;
}

double NullLaw::edge() const {
  if (kind_ == Kind::triangular) return e;
  if (kind_ == Kind::trapezoid) {
    const double p = TrapezoidCurve(gamma_).upper();
    return std::exp(p) * (1.0 - gamma_ + gamma_ / p);
  }
  const double root = 1.0 + std::sqrt(gamma_);
  return root * root;
}

// Two neighbours, and the share of the way from one to the other.
struct TriangularTable::Cell {
  const Node &from, &to;
  double share;

  Cubic of(double Node::* value, double Node::* slope) const {
    return {from.*value, to.*value, -kStep * (from.*slope), -kStep * (to.*slope)};
  }
};

double NullLaw::value_at(double t) const {
  if (kind_ == Kind::triangular) return triangular_value(t);
  if (kind_ == Kind::trapezoid) {
    const TrapezoidCurve curve(gamma_);
    return std::exp(curve.log_value(curve.upper() - t));
  }
  const double gap = 1.0 - std::sqrt(gamma_);
  const double half = std::cos(0.5 * t);
  return gap * gap + 4.0 * std::sqrt(gamma_) * half * half;
}

double NullLaw::angle(double x) const {
  if (kind_ == Kind::triangular) {
    if (x <= 0.0) return pi;
    if (x >= e) return 0.0;
    const double target = std::log(x);
    // Near the upper edge ln x = 1 − t²/2 + …, near 0 ln x ≈ −π/(π − t).
    if (table_ != nullptr) {
      return decreasing_root(log_triangular, log_triangular_slope, target, 0.0, pi,
                             table_->angle(x));
    }
    const double guess = target > -1.0 ? std::sqrt(2.0 * (1.0 - target)) * 0.95
                                       : pi - pi / (2.0 - target + std::log(1.0 - target));
    return decreasing_root(log_triangular, log_triangular_slope, target, 0.0, pi,
                           std::clamp(guess, 1e-12, pi - 1e-3));
  }
  if (kind_ == Kind::trapezoid) {
    const TrapezoidCurve curve(gamma_);
    const double target = std::log(x);
    const double up = curve.upper();
    if (!(target > curve.log_value(curve.lower()))) return curve.longest();
    if (x >= edge()) return 0.0;
    return decreasing_root([&](double t) { return curve.log_value(up - t); },
                           [&](double t) { return -curve.log_slope(up - t); }, target, 0.0,
                           curve.longest(), 0.5 * curve.longest());
  }
  const double root = std::sqrt(gamma_);
  const double low = (1.0 - root) * (1.0 - root);
  const double high = (1.0 + root) * (1.0 + root);
  if (x <= low) return pi;
  if (x >= high) return 0.0;
  return 2.0 * std::atan2(std::sqrt(high - x), std::sqrt(x - low));
}

double NullLaw::cdf_at(double t) const {
  if (kind_ == Kind::triangular) {
    const double s = std::sin(t);
    return t < 1e-8 ? 1.0 : 1.0 - t / pi + s * s / (pi * t);
  }
  if (kind_ == Kind::trapezoid) {
    const TrapezoidCurve curve(gamma_);
    return std::clamp(curve.cdf(curve.upper() - t), 0.0, 1.0);
  }
  return marchenko_pastur_cdf(gamma_, t, std::sin(0.5 * t), std::cos(0.5 * t));
}

NullLaw::Place NullLaw::place(double t) const {
  if (kind_ == Kind::triangular) {
    if (t < 1e-8) return {e, 1.0, t / pi};
    if (t >= pi) return {0.0, 0.0, std::numeric_limits<double>::infinity()};
    // x and F as value_at and cdf_at; F' = sin²t/(πtx), which falls as x rises.
    const double s = std::sin(t), c = std::cos(t);
    const double x = triangular_value(t, s, c);
    const double share = s * s / (pi * t);
    return {x, 1.0 - t / pi + share, share / x};
  }
  if (kind_ == Kind::trapezoid) {
    return {value_at(t), cdf_at(t), std::numeric_limits<double>::infinity()};
  }
  const double root = std::sqrt(gamma_);
  const double s = std::sin(0.5 * t), c = std::cos(0.5 * t);
  const double x = (1.0 - root) * (1.0 - root) + 4.0 * root * c * c;
  // F' = sqrt((b − x)(x − a))/(2πγx) between the ends a and b
  return {x, marchenko_pastur_cdf(gamma_, t, s, c),
          (1.0 + root) / (2.0 * pi * gamma_ * std::sqrt(x))};
}

double NullLaw::steepest_by_root() const {
  if (kind_ != Kind::marchenko_pastur) return std::numeric_limits<double>::infinity();
  // 2√x·F' = sqrt((b − x)(x − a))/(πγ√x), where (b − x)(x − a) is not above 4γx.
  return 2.0 / (pi * std::sqrt(gamma_));
}

double NullLaw::cdf(double x) const {
  if (x <= 0.0) return 0.0;
  if (x >= edge()) return 1.0;
  return cdf_at(angle(x));
}

double NullLaw::integral_at(double x, double t) const {
  if (kind_ == Kind::triangular) {
    // With ζ = t cot t + it, 1/x = ζ·e^{−ζ} and F = 1 − Im(ζ + 1/ζ)/π, so F dx has the
    // antiderivative x − Im[e^ζ − e^ζ/(2ζ) + e^ζ/(2ζ²) − Ei(ζ)/2]/π.
    const double s = std::sin(t);
    const double tail = imaginary_e1({-t_cot(t), -t});
    return x - x * (t - s * s / (2.0 * t)) / pi - tail / (2.0 * pi);
  }
  if (kind_ == Kind::trapezoid) {
    const TrapezoidCurve curve(gamma_);
    return x * cdf_at(t) - (mean() - curve.upper_moment(curve.upper() - t));
  }
  return x * cdf_at(t) - marchenko_pastur_moment(t, std::sin(t), std::cos(t));
}

NullLaw::Point NullLaw::at(double x) const {
  if (x <= 0.0) return {x, angle(x), 0.0, 0.0};
  // Past the edge of a law of mean E, ∫_0^x F = x − E.
  if (x >= edge()) return {x, 0.0, 1.0, x - mean()};
  if (table_ != nullptr) return table_->at(x);
  if (kind_ == Kind::marchenko_pastur) {
    // Sine and cosine of half the angle, where x lies between the ends of the support.
    const double root = std::sqrt(gamma_);
    const double rise = x - (1.0 - root) * (1.0 - root), width = 4.0 * root;
    if (rise <= 0.0) return {x, pi, 0.0, 0.0};
    const double s = std::sqrt(std::max(0.0, (width - rise) / width)), c = std::sqrt(rise / width);
    const double t = 2.0 * std::atan2(s, c);
    const double cdf = marchenko_pastur_cdf(gamma_, t, s, c);
    return {x, t, cdf, x * cdf - marchenko_pastur_moment(t, 2.0 * s * c, c * c - s * s)};
  }
  const double t = angle(x);
  return {x, t, cdf_at(t), integral_at(x, t)};
}

NullLaw::Point NullLaw::quantile(double u) const {
  if (table_ != nullptr) return table_->quantile(u);
  const double most = kind_ == Kind::trapezoid ? TrapezoidCurve(gamma_).longest() : pi;
  const auto slope = [&](double t) {
    if (kind_ == Kind::trapezoid) {
      const TrapezoidCurve curve(gamma_);
      const double p = curve.upper() - t;
      return -curve.density(p) * std::exp(curve.log_value(p)) * curve.log_slope(p);
    }
    if (kind_ == Kind::triangular) return triangular_cdf_slope(t);
    const double s = std::sin(t);
    return -2.0 * s * s / (pi * value_at(t));
  };
  const double guess = std::clamp(most * (1.0 - u), 1e-12, most - 1e-12);
  const double t =
      decreasing_root([&](double at) { return cdf_at(at); }, slope, u, 0.0, most, guess);
  const double x = value_at(t);
  return {x, t, u, integral_at(x, t)};
}

TriangularTable::TriangularTable() {
  const NullLaw law = NullLaw::triangular();
  nodes_.push_back({.x = 0.0,
                    .cdf = 0.0,
                    .cdf_slope = -1.0 / pi,
                    .integral = 0.0,
                    .integral_slope = 0.0,
                    .height = 0.0,
                    .square_slope = -2.0 * pi * pi});
  for (Index step = 1; step < kSteps; ++step) {
    const double t = pi - kStep * static_cast<double>(step);
    const double x = law.value_at(t), cdf = law.cdf_at(t);
    const double log_slope = log_triangular_slope(t);
    const double height = height_of(log_triangular(t));
    nodes_.push_back({.x = x,
                      .cdf = cdf,
                      .cdf_slope = triangular_cdf_slope(t),
                      .integral = x == 0.0 ? 0.0 : law.integral_at(x, t),
                      .integral_slope = cdf * x * log_slope,
                      .height = height,
                      .square_slope = 2.0 * t / (height * height * log_slope)});
  }
  nodes_.push_back({.x = e,
                    .cdf = 1.0,
                    .cdf_slope = 0.0,
                    .integral = e - 0.5,
                    .integral_slope = 0.0,
                    .height = 1.0,
                    .square_slope = -2.0});
  for (Index slot = kFirstSlot; slot <= kLastSlot; ++slot) {
    const auto from = std::bit_cast<double>(static_cast<std::uint64_t>(slot) << kSlotShift);
    const auto above = std::ranges::upper_bound(nodes_, from, {}, &Node::x) - nodes_.begin();
    starts_.push_back(static_cast<std::uint16_t>(above));
  }
}

Index TriangularTable::above(double x) const {
  const auto slot = static_cast<Index>(std::bit_cast<std::uint64_t>(x) >> kSlotShift) - kFirstSlot;
  Index node = slot < 0 ? 0 : starts_[slot];
  while (nodes_[node].x <= x) ++node;
  return node;
}

TriangularTable::Bracket TriangularTable::cdf(double from, double to) const {
  if (to <= 0.0) return {0.0, 0.0};
  if (from >= e) return {1.0, 1.0};
  const Index first = from <= 0.0 ? 1 : above(from);
  Index last = first;
  if (to >= e) {
    last = kSteps;
  } else {
    while (nodes_[last].x <= to) ++last;
  }
  return {nodes_[first - 1].cdf, nodes_[last].cdf};
}

double TriangularTable::angle(double x) const {
  const Index above = this->above(x);
  const Node& from = nodes_[above - 1];
  const Node& to = nodes_[above];
  const double width = to.height - from.height;
  const Cubic square(angle_of_node(above - 1) * angle_of_node(above - 1),
                     angle_of_node(above) * angle_of_node(above), width * from.square_slope,
                     width * to.square_slope);
  return std::sqrt(std::max(0.0, square.at((height_of(std::log(x)) - from.height) / width)));
}

TriangularTable::Cell TriangularTable::cell_of(double angle) const {
  const double place = (pi - angle) / kStep;
  const auto below = std::clamp<Index>(static_cast<Index>(place), 0, kSteps - 1);
  return {nodes_[below], nodes_[below + 1], place - static_cast<double>(below)};
}

NullLaw::Point TriangularTable::at(double x) const {
  const double t = angle(x);
  const Cell cell = cell_of(t);
  return {x, t, cell.of(&Node::cdf, &Node::cdf_slope).at(cell.share),
          cell.of(&Node::integral, &Node::integral_slope).at(cell.share)};
}

NullLaw::Point TriangularTable::quantile(double u) const {
  const auto next = std::ranges::upper_bound(nodes_, u, {}, &Node::cdf) - nodes_.begin();
  const auto above = std::clamp<Index>(next, 1, kSteps);
  const Cell cell{nodes_[above - 1], nodes_[above], 0.0};
  const Cubic cdf = cell.of(&Node::cdf, &Node::cdf_slope);
  // By the share of the way from the upper node to the lower one, along which F falls.
  const double share =
      1.0 - decreasing_root([&](double s) { return cdf.at(1.0 - s); },
                            [&](double s) { return -cdf.slope_at(1.0 - s); }, u, 0.0, 1.0, 0.5);
  const double t = angle_of_node(above - 1) - kStep * share;
  return {triangular_value(t), t, u, cell.of(&Node::integral, &Node::integral_slope).at(share)};
}

}  // namespace attnscope
