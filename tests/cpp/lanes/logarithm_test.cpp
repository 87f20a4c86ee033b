// SPDX-License-Identifier: MIT
#include "simd/logarithm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace attnscope {
namespace {

float logarithm(float x) { return scaled_log2(x - FloatVector{})[2 * kPackWidth - 1]; }

double relative_error(float x) {
  const double exact = std::ldexp(std::log2(static_cast<double>(x)), 23);
  return std::fabs(static_cast<double>(logarithm(x)) - exact) / std::fabs(exact);
}

TEST(LogarithmOfFloats, HoldsItsRelativeError) {
  std::mt19937_64 generator(1);
  for (const double lowest : {-1e-6, -1e-3, -0.5, -3.0, -87.0}) {
    std::uniform_real_distribution<double> exponents(lowest, 0.0);
    for (int time = 0; time < 20000; ++time) {
      const auto x = static_cast<float>(std::exp(exponents(generator)));
      if (x < 1.0f) {
        ASSERT_LE(relative_error(x), 7e-7) << x;
      }
    }
  }
  // Next to 1, next to powers of two, and halfway between them.
  for (const float x : {std::nextafter(1.0f, 0.0f), std::nextafter(1.0f, 2.0f), 1.01f}) {
    EXPECT_LE(relative_error(x), 7e-7) << x;
  }
  for (int k = 0; k < 125; ++k) {
    for (const double m : {0.5, std::sqrt(0.5), 0.75}) {
      const auto x = static_cast<float>(std::ldexp(m, -k));
      for (const float near : {std::nextafter(x, 0.0f), x, std::nextafter(x, 1.0f)}) {
        ASSERT_LE(relative_error(near), 7e-7) << near;
      }
    }
  }
  EXPECT_EQ(logarithm(1.0f), 0.0f);
}

TEST(LogarithmOfFloats, IsFiniteOfAnything) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, -1.0f, -kInfinity, kInfinity, 1e-42f,
                        std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_TRUE(std::isfinite(logarithm(x))) << x;
  }
}

}  // namespace
}  // namespace attnscope
