// SPDX-License-Identifier: MIT
#include "random_matrices/null_law.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>
#include <utility>

namespace attnscope {
namespace {

constexpr double kPi = std::numbers::pi;

// ∫_a^b f by tanh-sinh quadrature, which copes with the laws' infinite densities at an end.
double integrate(const std::function<double(double)>& f, double a, double b) {
  double sum = 0.0;
  const double h = 1.0 / 64.0;
  for (int k = -280; k <= 280; ++k) {
    const double s = k * h;
    const double u = 0.5 * kPi * std::sinh(s);
    // (1 ∓ tanh u)/2 without cancellation: the share of the way from the nearer end
    const double near = 1.0 / (std::exp(std::abs(u)) * 2.0 * std::cosh(u));
    const double w = 0.5 * kPi * std::cosh(s) / (std::cosh(u) * std::cosh(u));
    const double at = u < 0.0 ? a + (b - a) * near : b - (b - a) * near;
    if (w < 1e-300 || at <= a || at >= b) continue;
    sum += w * f(at);
  }
  return 0.5 * (b - a) * h * sum;
}

double lower_edge(double gamma) { return std::pow(1.0 - std::sqrt(gamma), 2); }

// E[x^k] = a^k + ∫_a k·x^{k−1}(1 − F) dx from the lower edge a
double moment(const NullLaw& law, double lower, int k) {
  return std::pow(lower, k) +
         integrate([&](double x) { return k * std::pow(x, k - 1) * (1.0 - law.cdf(x)); }, lower,
                   law.edge());
}

TEST(NullLaw, TriangularMomentsAreDykemaHaagerup) {
  const NullLaw law = NullLaw::triangular();
  double factorial = 1.0;
  for (int k = 1; k <= 8; ++k) {
    factorial *= k + 1;
    const double expected = std::pow(k, k) / factorial;
    EXPECT_NEAR(moment(law, 0.0, k) / expected, 1.0, 1e-10) << "k = " << k;
  }
}

TEST(NullLaw, MarchenkoPasturMomentsAreNarayana) {
  for (const double gamma : {1.0, 0.999, 0.75, 0.3, 0.02}) {
    const NullLaw law = NullLaw::marchenko_pastur(gamma);
    const double expected[] = {1.0, 1.0 + gamma, 1.0 + 3.0 * gamma + gamma * gamma,
                               1.0 + 6.0 * gamma + 6.0 * gamma * gamma + std::pow(gamma, 3)};
    for (int k = 1; k <= 4; ++k) {
      EXPECT_NEAR(moment(law, lower_edge(gamma), k) / expected[k - 1], 1.0, 1e-10)
          << "γ = " << gamma << " k = " << k;
    }
  }
}

TEST(NullLaw, MarchenkoPasturDensityIntegratesToTheCdf) {
  for (const double gamma : {1.0, 0.9, 0.25}) {
    const NullLaw law = NullLaw::marchenko_pastur(gamma);
    const double a = lower_edge(gamma);
    const double b = std::pow(1.0 + std::sqrt(gamma), 2);
    const auto density = [&](double x) {
      return std::sqrt((b - x) * (x - a)) / (2.0 * kPi * gamma * x);
    };
    for (const double share : {0.01, 0.1, 0.5, 0.9, 0.99}) {
      const double x = a + share * (b - a);
      EXPECT_NEAR(law.cdf(x), integrate(density, a, x), 1e-11) << "γ = " << gamma << " x = " << x;
    }
  }
}

TEST(NullLaw, IntegralIsTheIntegralOfTheCdf) {
  for (const auto& [law, lower] :
       {std::pair(NullLaw::triangular(), 0.0), std::pair(NullLaw::marchenko_pastur(1.0), 0.0),
        std::pair(NullLaw::marchenko_pastur(0.6), lower_edge(0.6))}) {
    for (const double share : {1e-6, 0.003, 0.1, 0.4, 0.8, 0.999, 1.0, 1.5}) {
      const double x = share * law.edge();
      const double inside = std::min(x, law.edge());
      const auto cdf = [&law = law](double t) { return law.cdf(t); };
      const double expected = (inside > lower ? integrate(cdf, lower, inside) : 0.0) + (x - inside);
      EXPECT_NEAR(law.at(x).integral, expected, 2e-11) << "x = " << x;
    }
  }
}

// E of the trapezoid by the walks that its moments count: X has c·n of n rows, row u of [0, 1] sees
// the keys up to 1 − c + c·u. E[x] = 1 − c/2; E[x²] = Σ over two rows that share keys, and two keys
// that share rows.
TEST(NullLaw, TrapezoidHasTheMomentsOfItsVariances) {
  for (const double c : {0.02, 0.25, 0.6, 0.97}) {
    const NullLaw law = NullLaw::trapezoid(c);
    EXPECT_NEAR(law.at(law.edge() + 1.0).integral, 1.0 + law.edge() - (1.0 - c / 2), 1e-12) << c;
    const auto visible = [=](double u) { return 1.0 - c + c * u; };
    EXPECT_NEAR(moment(law, 0.0, 1), 1.0 - c / 2, 2e-4) << c;
    // keys that both rows see, and rows that see both keys, each in its share of the axes
    const double rows = integrate([&](double u) { return visible(u) * visible(u); }, 0.0, 1.0);
    const double keys = integrate(
        [&](double u) {
          return integrate([&](double v) { return c * std::min(visible(u), visible(v)); }, 0.0,
                           1.0);
        },
        0.0, 1.0);
    EXPECT_NEAR(moment(law, 0.0, 2), rows + keys, 1e-3) << c;
  }
}

TEST(NullLaw, TrapezoidIntegralIsTheIntegralOfTheCdf) {
  for (const double c : {0.05, 0.5, 0.9}) {
    const NullLaw law = NullLaw::trapezoid(c);
    for (const double share : {0.4, 0.8, 0.999}) {
      const double x = share * law.edge();
      const double expected = integrate([&](double t) { return law.cdf(t); }, 0.0, x);
      EXPECT_NEAR(law.at(x).integral, expected, 2e-4) << c << " " << x;
    }
    for (int k = 1; k < 50; ++k) {
      const auto point = law.quantile(k / 50.0);
      EXPECT_NEAR(law.cdf(point.x), k / 50.0, 1e-9) << c;
    }
  }
}

TEST(NullLaw, TriangularNearZeroFallsLikeOneOverALogarithm) {
  const NullLaw law = NullLaw::triangular();
  // With δ = π − t: x = (sin δ/(π − δ))·exp(−(π − δ)·cot δ) and F = δ/π + sin²δ/(π(π − δ)).
  for (const double delta : {0.005, 0.05, 0.092, 0.3, 1.0, 2.0, 3.0}) {
    const double s = std::sin(delta);
    const double x = s / (kPi - delta) * std::exp(-(kPi - delta) * std::cos(delta) / s);
    EXPECT_NEAR(law.cdf(x), delta / kPi + s * s / (kPi * (kPi - delta)), 1e-13) << "x = " << x;
  }
  EXPECT_NEAR(law.cdf(1e-16), 0.0299, 1e-4);
}

TEST(NullLaw, TheTableChangesNothing) {
  const TriangularTable table;
  const NullLaw plain = NullLaw::triangular();
  const NullLaw fast = NullLaw::triangular(&table);
  for (double x = 1e-40; x < 3.5; x = x < 0.01 ? 1.5 * x : x + 0.0137) {
    EXPECT_NEAR(fast.cdf(x), plain.cdf(x), 2e-15) << x;
    EXPECT_NEAR(fast.at(x).integral, plain.at(x).integral, 5e-13) << x;
    EXPECT_NEAR(fast.at(x).cdf, plain.cdf(x), x > 1e-15 ? 1e-13 : 1e-11) << x;
  }
  for (const double gap : {1e-3, 1e-6, 1e-9, 1e-12}) {
    const double x = plain.edge() * (1.0 - gap);
    EXPECT_NEAR(fast.cdf(x), plain.cdf(x), 2e-15) << x;
    EXPECT_NEAR(fast.at(x).integral, plain.at(x).integral, 5e-13) << x;
  }
  for (int k = 1; k < 100; ++k) {
    const auto point = fast.quantile(k / 100.0);
    EXPECT_NEAR(plain.cdf(point.x), k / 100.0, 1e-13);
    EXPECT_NEAR(plain.at(point.x).integral, point.integral, 5e-13);
  }
}

TEST(NullLaw, QuantileInvertsTheCdf) {
  for (const NullLaw& law :
       {NullLaw::triangular(), NullLaw::marchenko_pastur(1.0), NullLaw::marchenko_pastur(0.4)}) {
    for (int k = 1; k < 200; ++k) {
      const double u = k / 200.0;
      const double x = law.quantile(u).x;
      EXPECT_NEAR(law.cdf(x), u, 1e-13) << "u = " << u;
    }
    EXPECT_EQ(law.cdf(law.edge()), 1.0);
    EXPECT_EQ(law.cdf(0.0), 0.0);
    EXPECT_EQ(law.cdf(-1.0), 0.0);
  }
}

}  // namespace
}  // namespace attnscope
