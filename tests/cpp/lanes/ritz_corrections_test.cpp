// SPDX-License-Identifier: MIT
// Corrections of Ritz vectors with an inverse that is diagonal, so that every answer has a closed
// form.
#include "linalg/refinement/ritz_corrections.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "simd/memory.h"

namespace attnscope {
namespace {

constexpr Index kPadded = 64;

// B⁻¹ has the eigenvalue 1 / (1 + i) at unit vector i, and the first three are the space.
double inverse_at(Index i) { return 1.0 / (1.0 + static_cast<double>(i)); }

void apply_inverse(float* x, Index count) {
  for (Index k = 0; k < count * kPadded; ++k) x[k] *= static_cast<float>(inverse_at(k % kPadded));
}

class RitzCorrections : public ::testing::Test {
 protected:
  RitzCorrections() : floats_(reinterpret_cast<float*>(memory_.resize(6 * kPadded))) {
    std::fill(floats_, floats_ + 12 * kPadded, 0.0f);
    for (Index k = 0; k < 3; ++k) floats_[k * kPadded + k] = 1.0f;
    round_.size = 3;
    round_.pairs.values = Eigen::Vector3d(inverse_at(2), inverse_at(1), inverse_at(0));
  }

  RitzSpace space(Index targets) const { return {kPadded, round_, floats_, targets}; }
  // The vectors z, with room for what is made of them.
  float* residuals() const { return floats_ + 3 * kPadded; }

 private:
  AlignedBuffer memory_;
  BlockRound round_;
  float* floats_;
};

TEST_F(RitzCorrections, DeflationInvertsInTheSpaceAndTakesTheTargetsAway) {
  float* x = residuals();
  std::fill(x, x + kPadded, 1.0f);
  const double delta = 1.5;
  space(1).deflate(delta, x);
  EXPECT_NEAR(x[0], 0.0, 1e-6);
  EXPECT_NEAR(x[1], 1.0 / (1.0 - delta * inverse_at(1)), 1e-6);
  EXPECT_NEAR(x[2], 1.0 / (1.0 - delta * inverse_at(2)), 1e-6);
  EXPECT_EQ(x[3], 1.0f);
}

TEST_F(RitzCorrections, TwoResidualsAreSolvedAtOnce) {
  const double delta[2] = {1.2, 1.9}, share[2] = {1e-6, 1e-6};
  float* z = residuals();
  for (Index i = 2; i < 40; ++i) z[i] = z[kPadded + i] = 1.0f;
  const float* t = correct_ritz_vectors(space(2), 2, delta, share, z, apply_inverse);
  for (Index k = 0; k < 2; ++k) {
    for (Index i = 0; i < kPadded; ++i) {
      const double expected = i < 2 || i >= 40 ? 0.0 : 1.0 / (1.0 - delta[k] * inverse_at(i));
      EXPECT_NEAR(t[k * kPadded + i], expected, 1e-4) << k << " " << i;
    }
  }
}

TEST_F(RitzCorrections, ADirectionThatIsNoDescentIsTakenAsItIs) {
  // At unit vector 4 the matrix 1 − δB⁻¹ is negative.
  const double delta = 6.0, share = 1e-6;
  float* z = residuals();
  z[4] = 1.0f;
  const float* t = correct_ritz_vectors(space(1), 1, &delta, &share, z, apply_inverse);
  EXPECT_EQ(t[4], 1.0f);
}

}  // namespace
}  // namespace attnscope
