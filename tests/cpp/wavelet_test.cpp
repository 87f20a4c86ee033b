// SPDX-License-Identifier: MIT
#include "kernels/wavelet.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

WaveletOptions last(Index levels) {
  WaveletOptions options;
  options.signal.kind = SignalOptions::Kind::last;
  options.signal.min_keys = 2;
  options.levels = levels;
  return options;
}

std::vector<double> transform(const RowMatrix<double>& a, Index levels) {
  std::vector<double> out(static_cast<std::size_t>(wavelet_fields(levels)), -1.0);
  WaveletScratch scratch;
  wavelet_transform(view(a), Support{}, last(levels), out.data(), nullptr, scratch);
  return out;
}

TEST(Wavelet, LevelsFollowTheRuleOfTheFourTaps) {
  EXPECT_EQ(wavelet_levels(5), 0);
  EXPECT_EQ(wavelet_levels(6), 1);
  EXPECT_EQ(wavelet_levels(32), 3);
  EXPECT_EQ(wavelet_levels(48), 4);
  EXPECT_EQ(wavelet_levels(1024), 8);
}

TEST(Wavelet, AConstantIsAllApproximation) {
  const auto out = transform(RowMatrix<double>::Constant(64, 64, 0.3), 3);
  EXPECT_NEAR(out[0], 1.0, 1e-12);
  EXPECT_NEAR(out[4], 0.0, 1e-12);
  EXPECT_NEAR(out[5], 3.0, 1e-12);  // eight equal coefficients
}

TEST(Wavelet, ReconstructsEveryLengthToRounding) {
  for (Index n = 24; n < 60; ++n) {
    const auto out = transform(testing::random_attention(n, false, 2, 3.0), 3);
    EXPECT_LT(out.back(), 1e-14) << n;
    EXPECT_NEAR(out[0] + out[1] + out[2] + out[3], 1.0, 1e-13) << n;
  }
}

TEST(Wavelet, TooShortASignalKeepsWhatWasThere) {
  for (double value : transform(testing::random_attention(20, false, 2), 3)) EXPECT_EQ(value, -1.0);
}

TEST(Scalogram, AnImpulseIsTheWaveletsEnvelope) {
  const Index n = 50;
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  a(n - 1, 20) = 1.0;
  const double scales[2] = {1.5, 6.0};
  std::vector<double> out(2 * n, -1.0);
  WaveletScratch scratch;
  morlet_scalogram(view(a), Support{}, last(1).signal, scales, 2, 6.0, out.data(), scratch);
  for (Index s = 0; s < 2; ++s) {
    for (Index b = 0; b < n; ++b) {
      const double z = double(b - 20) / scales[s];
      const double expected = std::exp(-z * z) / (scales[s] * std::sqrt(std::numbers::pi));
      EXPECT_NEAR(out[static_cast<std::size_t>(s * n + b)], expected, 1e-14);
    }
  }
}

}  // namespace
}  // namespace attnscope
