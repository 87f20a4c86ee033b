// SPDX-License-Identifier: MIT
#include "simd/exponential.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace attnscope {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

double exponential(double x) { return bounded_exp(broadcast(x))[kPackWidth - 1]; }

// Distance from e^x in units of the last place of the result.
double error_in_ulp(double x) {
  const double value = exponential(x);
  const long double exact = std::exp(static_cast<long double>(x));
  const double ulp = std::nextafter(value, kInf) - value;
  return static_cast<double>(std::fabs(static_cast<long double>(value) - exact)) / ulp;
}

TEST(Exponential, IsWithinTwoUnitsOfTheLastPlace) {
  std::mt19937_64 generator(1);
  for (const double lowest : {-1e-12, -1e-3, -0.5, -3.0, -60.0, -708.0}) {
    std::uniform_real_distribution<double> numbers(lowest, 0.0);
    for (int time = 0; time < 20000; ++time) {
      const double x = numbers(generator);
      ASSERT_LE(error_in_ulp(x), 2.0) << x;
    }
  }
  // Where the argument changes from one power of two to the next.
  for (int k = 0; k < 1021; ++k) {
    const double x = -(k + 0.5) * std::log(2.0);
    for (const double near : {std::nextafter(x, 0.0), x, std::nextafter(x, -kInf)}) {
      if (near < -708.0) continue;
      ASSERT_LE(error_in_ulp(near), 2.0) << near;
    }
  }
}

TEST(Exponential, OfZeroIsOne) {
  EXPECT_EQ(exponential(0.0), 1.0);
  EXPECT_EQ(exponential(-0.0), 1.0);
  EXPECT_EQ(exponential(-std::numeric_limits<double>::denorm_min()), 1.0);
}

TEST(Exponential, OfWhatIsTooSmallOrNoNumberIsZero) {
  EXPECT_GT(exponential(-708.0), 0.0);
  for (const double x :
       {std::nextafter(-708.0, -kInf), -745.2, -1e300, std::numeric_limits<double>::lowest(), -kInf,
        std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(exponential(x), 0.0) << x;
  }
}

TEST(Exponential, NoLaneSeesAnother) {
  Lanes x;
  for (Index k = 0; k < kPackWidth; ++k) x[k] = k % 2 == 0 ? -static_cast<double>(k) : -kInf;
  const Lanes value = bounded_exp(x);
  for (Index k = 0; k < kPackWidth; ++k) EXPECT_DOUBLE_EQ(value[k], exponential(x[k]));
}

}  // namespace
}  // namespace attnscope
