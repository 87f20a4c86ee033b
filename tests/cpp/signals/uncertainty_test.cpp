// SPDX-License-Identifier: MIT
#include "kernels/signals/uncertainty.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

std::vector<double> last_row(const RowMatrix<double>& a, bool root) {
  SignalOptions options;
  options.kind = SignalOptions::Kind::last;
  options.min_keys = 2;
  std::vector<double> out(kUncertaintyFields, -1.0);
  UncertaintyScratch scratch;
  uncertainty(view(a), Support{}, options, root, out.data(), scratch);
  return out;
}

TEST(Uncertainty, OneKeyAndAllKeysReachTheEntropicBound) {
  for (Index n : {2, 7, 32, 61}) {
    const auto impulse = last_row(RowMatrix<double>::Identity(n, n), true);
    EXPECT_NEAR(impulse[0], 0.0, 1e-14);
    EXPECT_NEAR(impulse[1], std::log(double(n)), 1e-11);
    EXPECT_NEAR(impulse[4], std::numbers::pi * std::numbers::pi / 3.0, 1e-11);
    EXPECT_NEAR(impulse[5], 0.0, 1e-14);
    const auto uniform = last_row(RowMatrix<double>::Constant(n, n, 1.0 / double(n)), true);
    EXPECT_NEAR(uniform[0], std::log(double(n)), 1e-12);
    EXPECT_NEAR(uniform[1], 0.0, 1e-11);
    EXPECT_NEAR(uniform[3], (double(n) * double(n) - 1.0) / 12.0, 1e-9);
  }
}

TEST(Uncertainty, TwoEqualKeysHaveTheVarianceOfTheirCosine) {
  // |Ψ|² = 1 + cos ω, and the mean of ω² cos ω over a turn is −2.
  const auto pair = last_row(RowMatrix<double>::Constant(2, 2, 0.5), true);
  EXPECT_NEAR(pair[4], std::numbers::pi * std::numbers::pi / 3.0 - 2.0, 1e-12);
}

TEST(Uncertainty, BothBoundsHoldOnRandomRows) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    const auto a =
        testing::random_attention(20 + static_cast<Index>(seed), false, seed, 0.3 * seed);
    for (bool root : {true, false}) {
      const auto out = last_row(a, root);
      EXPECT_GE(out[0] + out[1], out[2] - 1e-10);
      EXPECT_GE(out[3] * out[4], out[5] - 1e-10);
    }
  }
}

TEST(Uncertainty, ANegativeEntryHasNone) {
  RowMatrix<double> a = RowMatrix<double>::Constant(8, 8, 0.25);
  a(7, 3) = -0.25;
  EXPECT_EQ(last_row(a, true), std::vector<double>(kUncertaintyFields, -1.0));
}

}  // namespace
}  // namespace attnscope
