// SPDX-License-Identifier: MIT
#include "linalg/refinement/missed_eigenvalue.h"

#include <gtest/gtest.h>

#include <vector>

#include "simd/memory.h"

namespace attnscope {
namespace {

constexpr Index kSize = 64;

// Whether a second start may miss an eigenvalue >= level of the operator that multiplies coordinate
// i by values[i], where the first steps came to coordinate `ritz` and coordinate 0 is left out.
template <class Number>
bool may_miss(const std::vector<double>& values, Index ritz, double level) {
  AlignedBuffer buffer;
  auto* vectors = reinterpret_cast<Number*>(buffer.resize((2 + kSecondVectors) * kSize));
  std::fill(vectors, vectors + 2 * kSize, Number{0});
  vectors[0] = 1;
  vectors[kSize + ritz] = 1;
  return may_miss_eigenvalue(kSize, static_cast<Index>(values.size()), vectors, vectors + kSize,
                             level, vectors + 2 * kSize, [&](Number* x) {
                               for (std::size_t i = 0; i < values.size(); ++i)
                                 x[i] *= static_cast<Number>(values[i]);
                             });
}

std::vector<double> spectrum(Index n) {
  std::vector<double> values(n);
  for (Index i = 0; i < n; ++i) values[i] = 1.0 / (1.0 + static_cast<double>(i));
  return values;
}

TEST(MissedEigenvalue, TheLargestIsNotMissed) {
  for (Index n : {3, 4, 10, 64}) {
    const std::vector<double> values = spectrum(n);  // 1 of coordinate 0 is left out
    EXPECT_FALSE(may_miss<double>(values, 1, 0.5)) << n;
    EXPECT_FALSE(may_miss<float>(values, 1, 0.5)) << n;
  }
}

TEST(MissedEigenvalue, ALargerOneIsSeen) {
  for (Index n : {4, 10, 64}) {
    for (Index missed = 2; missed < n; missed += 7) {
      std::vector<double> values = spectrum(n);
      values[missed] = 0.5 * (1.0 + 1e-5);
      EXPECT_TRUE(may_miss<double>(values, 1, 0.5)) << n << " " << missed;
      EXPECT_TRUE(may_miss<float>(values, 1, 0.5)) << n << " " << missed;
      // It lies below this level.
      EXPECT_FALSE(may_miss<double>(values, 1, 0.5 * (1.0 + 1e-4))) << n << " " << missed;
    }
  }
}

TEST(MissedEigenvalue, AnEqualOneLiesBelowALevelThatIsALittleHigher) {
  std::vector<double> values = spectrum(40);
  values[30] = 0.5;
  EXPECT_TRUE(may_miss<double>(values, 1, 0.5 * (1.0 - 1e-9)));
  EXPECT_FALSE(may_miss<double>(values, 1, 0.5 * (1.0 + 1e-9)));
  const std::vector<double> equal(40, 1.0);
  EXPECT_TRUE(may_miss<double>(equal, 1, 1.0 - 1e-9));
  EXPECT_FALSE(may_miss<double>(equal, 1, 1.0 + 1e-9));
}

TEST(MissedEigenvalue, TheNextOneIsToldFromALowerLevel) {
  const std::vector<double> values = spectrum(40);  // the next is 1/3
  EXPECT_FALSE(may_miss<float>(values, 1, 0.34));
  EXPECT_TRUE(may_miss<float>(values, 1, 0.33));
}

}  // namespace
}  // namespace attnscope
