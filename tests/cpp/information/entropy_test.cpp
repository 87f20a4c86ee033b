// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

std::vector<double> entropy(const RowMatrix<double>& a, Support support, bool normalized) {
  std::vector<double> out(static_cast<std::size_t>(a.rows()));
  RowScratch workspace;
  EXPECT_TRUE(attention_entropy(view(a), false, support, normalized, out.data(), workspace));
  return out;
}

Support causal() {
  Support support;
  support.kind = Support::Kind::causal;
  return support;
}

TEST(Entropy, ALogarithmIsRightToAFewUnitsInTheLastPlace) {
  // One entry a row: −x log x, whatever its size, most of all beside 1 and where the mantissa is
  // halved.
  constexpr Index n = 512;
  std::mt19937_64 generator(17);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  double worst = 0.0;
  for (int round = 0; round < 40; ++round) {
    RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
    for (Index i = 0; i < n; ++i) {
      double& x = a(i, i);
      switch (i % 4) {
        case 0:
          x = uniform(generator);
          break;
        case 1:
          x = std::ldexp(1.0 + uniform(generator), -int(1020.0 * uniform(generator)));
          break;
        case 2:
          x = 1.0 + (uniform(generator) - 0.5) * std::ldexp(1.0, -int(50.0 * uniform(generator)));
          break;
        default:
          x = std::sqrt(0.5) * (1.0 + (uniform(generator) - 0.5) * 1e-12);
      }
    }
    const auto entropies_of_rows = entropy(a, causal(), false);
    for (Index i = 0; i < n; ++i) {
      const long double x = a(i, i);
      const long double expected = -x * std::log(x);
      if (expected == 0.0L) {
        EXPECT_EQ(entropies_of_rows[i], 0.0);
      } else {
        worst = std::max(worst, double(std::abs((entropies_of_rows[i] - expected) / expected)));
      }
    }
  }
  EXPECT_LT(worst, 5.0 * 0x1p-53);
}

TEST(Entropy, UniformCausalIsTheLogOfTheVisibleKeys) {
  for (Index n : {1, 2, 3, 7, 8, 9, 33, 100}) {
    const auto plain = entropy(testing::uniform_causal(n), causal(), false);
    const auto normalized = entropy(testing::uniform_causal(n), causal(), true);
    EXPECT_TRUE(std::isnan(normalized[0]));
    for (Index i = 0; i < n; ++i) {
      EXPECT_NEAR(plain[i], std::log(double(i + 1)), 1e-14 * double(n)) << "n " << n << " i " << i;
      if (i > 0) {
        EXPECT_NEAR(normalized[i], 1.0, 1e-14 * double(n));
      }
    }
  }
}

TEST(Entropy, EqualsTheScalarSumOverEverySizeAndMagnitude) {
  for (Index n : {1, 5, 16, 17, 61}) {
    // A sharpness of 60 reaches down to subnormal entries and to exact zeros.
    for (double sharpness : {0.1, 3.0, 60.0}) {
      const RowMatrix<double> a = testing::random_attention(n, false, 7, sharpness);
      const auto entropies_of_rows = entropy(a, Support{}, false);
      for (Index i = 0; i < n; ++i) {
        double expected = 0.0;
        for (Index j = 0; j < n; ++j) {
          if (a(i, j) > 0.0) expected -= a(i, j) * std::log(a(i, j));
        }
        EXPECT_NEAR(entropies_of_rows[i], expected, 1e-14 * (1.0 + expected))
            << "n " << n << " row " << i;
      }
    }
  }
}

TEST(Entropy, TransposedViewAndHalfTypesReadTheSameEntries) {
  const RowMatrix<double> a = testing::random_attention(37, false, 3);
  const RowMatrix<double> transposed = a.transpose();
  std::vector<double> rows(37);
  RowScratch workspace;
  Support full;
  attention_entropy(matrix_view(transposed.data(), 37, 1, 37), false, full, false, rows.data(),
                    workspace);
  EXPECT_EQ(rows, entropy(a, Support{}, false));

  const RowMatrix<Eigen::half> half = a.cast<Eigen::half>();
  const RowMatrix<double> widened = half.cast<double>();
  attention_entropy(view(half), false, full, false, rows.data(), workspace);
  EXPECT_EQ(rows, entropy(widened, Support{}, false));

  const RowMatrix<Eigen::bfloat16> brain = a.cast<Eigen::bfloat16>();
  attention_entropy(view(brain), false, full, false, rows.data(), workspace);
  EXPECT_EQ(rows, entropy(brain.cast<double>(), Support{}, false));
}

TEST(Entropy, AMaskHidesEntriesAndCountsKeys) {
  RowMatrix<double> a = RowMatrix<double>::Constant(3, 3, 0.5);
  const bool mask[9] = {true, true, false, false, true, false, false, false, false};
  const Support support = testing::masked(mask, 3);
  const auto plain = entropy(a, support, false);
  EXPECT_NEAR(plain[0], std::log(2.0), 1e-15);
  EXPECT_NEAR(plain[1], 0.5 * std::log(2.0), 1e-15);
  EXPECT_EQ(plain[2], 0.0);
  const auto normalized = entropy(a, support, true);
  EXPECT_NEAR(normalized[0], 1.0, 1e-15);
  EXPECT_TRUE(std::isnan(normalized[1]));
  EXPECT_TRUE(std::isnan(normalized[2]));
}

TEST(Entropy, ANegativeEntryMakesItsRowAloneNaN) {
  RowMatrix<double> a = testing::random_attention(20, false, 4);
  a(3, 19) = -1e-3;
  const auto entropies_of_rows = entropy(a, Support{}, false);
  EXPECT_TRUE(std::isnan(entropies_of_rows[3]));
  EXPECT_FALSE(std::isnan(entropies_of_rows[2]) || std::isnan(entropies_of_rows[4]));
  a(3, 19) = -0.0;
  EXPECT_FALSE(std::isnan(entropy(a, Support{}, false)[3]));
}

TEST(Entropy, TheReadJudgesMapsThatItWidens) {
  // No column stride and no half type is read in place.
  const RowMatrix<float> single = testing::random_attention(9, false, 2).cast<float>();
  RowMatrix<float> infinite = single;
  infinite(2, 7) = std::numeric_limits<float>::infinity();
  RowScratch workspace;
  std::vector<double> entropies(9), full(9);
  for (const auto& map : {view(single), matrix_view(single.data(), Index{9}, Index{1}, Index{9})}) {
    Support entropies_of_rows, all;
    EXPECT_TRUE(
        attention_entropy(map, true, entropies_of_rows, false, entropies.data(), workspace));
    EXPECT_EQ(entropies_of_rows.kind, Support::Kind::full);
    EXPECT_TRUE(attention_entropy(map, false, all, false, full.data(), workspace));
    EXPECT_EQ(entropies, full);
  }
  Support entropies_of_rows;
  const RowMatrix<Eigen::half> halved = single.cast<Eigen::half>();
  EXPECT_TRUE(
      attention_entropy(view(halved), true, entropies_of_rows, false, entropies.data(), workspace));
  EXPECT_EQ(entropies_of_rows.kind, Support::Kind::full);
  EXPECT_FALSE(attention_entropy(view(infinite), true, entropies_of_rows, false, entropies.data(),
                                 workspace));
}

TEST(Entropy, TheReadJudgesTheSupportAndSeesWhatIsNotFinite) {
  RowScratch workspace;
  for (Index n : {1, 2, 3, 7, 37}) {
    for (bool is_causal : {false, true}) {
      RowMatrix<double> a = testing::random_attention(n, is_causal, 5);
      std::vector<double> entropies_of_rows(static_cast<std::size_t>(n));
      Support support;
      ASSERT_TRUE(
          attention_entropy(view(a), true, support, false, entropies_of_rows.data(), workspace));
      EXPECT_EQ(support.kind, auto_support(view(a)).kind) << "n " << n;
      EXPECT_EQ(entropies_of_rows, entropy(a, auto_support(view(a)), false));
      // Anywhere, above the diagonal too.
      for (double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
        for (Index at : {Index{0}, n - 1, n * (n - 1), n * n - 1}) {
          RowMatrix<double> non_finite = a;
          non_finite.data()[at] = bad;
          EXPECT_FALSE(attention_entropy(view(non_finite), true, support, false,
                                         entropies_of_rows.data(), workspace));
          EXPECT_TRUE(std::isnan(entropies_of_rows[0]));
        }
      }
    }
  }
  // A sum that leaves float64's range is no entry that is not finite.
  const RowMatrix<double> large = RowMatrix<double>::Constant(4, 4, 1e308);
  std::vector<double> entropies_of_rows(4);
  Support support;
  EXPECT_TRUE(
      attention_entropy(view(large), true, support, false, entropies_of_rows.data(), workspace));
}

}  // namespace
}  // namespace attnscope
