// SPDX-License-Identifier: MIT
// What an error of the values leaves open of the distance from a law.
#include "random_matrices/spectral_distance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace attnscope {
namespace {

// Values near the law's quantiles, `below` of them near 0.
std::vector<double> values_of(const NullLaw& law, Index count, Index below, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform;
  const double widest = law.angle(1e-9);
  std::vector<double> values;
  for (Index i = 0; i < count; ++i) {
    values.push_back(i < below ? std::pow(10.0, -6.0 - 10.0 * uniform(generator))
                               : law.place(widest * std::pow(uniform(generator), 1.3)).x);
  }
  std::sort(values.begin(), values.end());
  return values;
}

TEST(CertifiedDistance, HoldsForEveryValueWithinTheError) {
  const TriangularTable table;
  std::mt19937 generator(3);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  for (const bool causal : {true, false}) {
    for (const double size : {1e-7, 1e-5, 1e-3}) {
      const RootError error{size, size};
      for (unsigned seed = 0; seed < 40; ++seed) {
        const NullLaw law =
            causal ? NullLaw::triangular(&table) : NullLaw::marchenko_pastur(0.5 + 0.0125 * seed);
        const TriangularTable* table_of_law = causal && seed % 2 == 0 ? &table : nullptr;
        const double floor = kResolvedShare * law.edge();
        const std::vector<double> values = values_of(law, 60, seed % 7 * 4, seed);
        const CertifiedDistance certified =
            certified_kolmogorov_smirnov(values, error, law, floor, table_of_law);
        EXPECT_EQ(certified.distance, kolmogorov_smirnov(values, law, floor, table_of_law));
        for (int time = 0; time < 30; ++time) {
          // all one way, or each its own
          const double way = time < 2 ? 2.0 * time - 1.0 : 0.0;
          std::vector<double> moved;
          for (const double value : values) {
            const double root = std::sqrt(value);
            const double by = way != 0.0 ? way : uniform(generator);
            const double end = std::max(0.0, root + by * error.of(root));
            moved.push_back(end * end);
          }
          std::sort(moved.begin(), moved.end());
          const double distance = kolmogorov_smirnov(moved, law, floor, table_of_law);
          EXPECT_LE(std::abs(distance - certified.distance), certified.uncertain + 1e-13)
              << (causal ? "causal" : "full") << " size " << size << " seed " << seed;
        }
      }
    }
  }
}

TEST(CertifiedDistance, HoldsForEveryValueWithinAnErrorOfItsOwn) {
  const TriangularTable table;
  std::mt19937 generator(4);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  for (const double error : {1e-14, 1e-9, 1e-5, 1e-3}) {
    for (unsigned seed = 0; seed < 40; ++seed) {
      const NullLaw law = NullLaw::triangular(&table);
      const double floor = kResolvedShare * law.edge();
      const std::vector<double> values = values_of(law, 60, seed % 7 * 4, seed);
      const CertifiedDistance certified =
          certified_kolmogorov_smirnov(values, error, law, floor, seed % 2 == 0 ? &table : nullptr);
      for (int time = 0; time < 30; ++time) {
        // all one way, or each its own
        const double way = time < 2 ? 2.0 * time - 1.0 : 0.0;
        std::vector<double> moved;
        for (const double value : values)
          moved.push_back(value + error * (way != 0.0 ? way : uniform(generator)));
        std::sort(moved.begin(), moved.end());
        const double distance = kolmogorov_smirnov(moved, law, floor, &table);
        EXPECT_LE(std::abs(distance - certified.distance), certified.uncertain + 1e-13)
            << "error " << error << " seed " << seed;
      }
    }
  }
}

TEST(CertifiedDistance, IsCertainWhereValuesAre) {
  const NullLaw law = NullLaw::triangular();
  const double floor = kResolvedShare * law.edge();
  const std::vector<double> values = values_of(law, 60, 0, 1);
  EXPECT_LT(certified_kolmogorov_smirnov(values, {0.0, 0.0}, law, floor).uncertain, 1e-12);
}

TEST(NullLaw, RisesNoFasterThanItsSteepestByRoot) {
  for (const double gamma : {0.1, 0.5, 0.9, 1.0}) {
    const NullLaw law = NullLaw::marchenko_pastur(gamma);
    double steepest = 0.0;
    const double step = 1e-4;
    for (double root = 0.0; root < 2.1; root += step) {
      const double rise = law.cdf((root + step) * (root + step)) - law.cdf(root * root);
      steepest = std::max(steepest, rise / step);
    }
    EXPECT_LE(steepest, law.steepest_by_root() * (1.0 + 1e-6)) << gamma;
    EXPECT_GT(steepest, 0.6 * law.steepest_by_root()) << gamma;
  }
}

TEST(LawQuantiles, BelongToTheLawAndTheNumberOfValuesThatWereLastAskedFor) {
  const TriangularTable table;
  const NullLaw laws[] = {NullLaw::triangular(&table), NullLaw::triangular(),
                          NullLaw::marchenko_pastur(0.6), NullLaw::trapezoid(0.5)};
  LawQuantiles shared;
  for (const Index count : {20, 21}) {
    for (const NullLaw& law : laws) {
      for (unsigned seed = 0; seed < 3; ++seed) {
        const std::vector<double> values = values_of(NullLaw::triangular(), count, 2, seed);
        LawQuantiles fresh;
        EXPECT_EQ(wasserstein(values, law, shared), wasserstein(values, law, fresh));
      }
    }
  }
}

TEST(Wasserstein, IsTheIntegralOfTheDifference) {
  for (const NullLaw& law : {NullLaw::triangular(), NullLaw::marchenko_pastur(0.6)}) {
    const std::vector<double> values = values_of(law, 20, 2, 5);
    const double longest = std::max(law.edge(), values.back());
    constexpr int steps = 200000;
    double expected = 0.0;
    for (int k = 0; k < steps; ++k) {
      const double x = longest * (k + 0.5) / steps;
      const auto below = std::ranges::upper_bound(values, x) - values.begin();
      expected += std::abs(static_cast<double>(below) / 20.0 - law.cdf(x)) * longest / steps;
    }
    LawQuantiles quantiles;
    EXPECT_NEAR(wasserstein(values, law, quantiles), expected, 1e-5);
  }
}

}  // namespace
}  // namespace attnscope
