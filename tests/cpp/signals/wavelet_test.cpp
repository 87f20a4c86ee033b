// SPDX-License-Identifier: MIT
#include "kernels/signals/wavelet.h"

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
  // The details hold rounding, which has no entropy.
  for (std::size_t s = 6; s < 9; ++s) EXPECT_TRUE(std::isnan(out[s]));
}

TEST(Wavelet, TheProfileIsTheMeanOverRows) {
  // A row of c has the approximations c·2^(levels/2); the rows are 0.1, 0.2, …
  constexpr Index n = 12;
  RowMatrix<double> a(n, n);
  for (Index i = 0; i < n; ++i) a.row(i).setConstant(0.1 * double(i + 1));
  WaveletOptions options;
  options.signal.min_keys = n;
  options.levels = 2;
  options.resample = 3;
  std::vector<double> out(static_cast<std::size_t>(n * wavelet_fields(2)));
  std::vector<double> profile(9, -1.0);
  WaveletScratch scratch;
  for (const double unit : {1.0, 1e-200, 1e-308}) {
    wavelet_transform(view(RowMatrix<double>(unit * a)), Support{}, options, out.data(),
                      profile.data(), scratch);
    for (std::size_t r = 0; r < 3; ++r) EXPECT_NEAR(profile[r] / unit, 1.3, 1e-13);
    for (std::size_t r = 3; r < 9; ++r) EXPECT_NEAR(profile[r] / unit, 0.0, 1e-13);
  }
}

TEST(Wavelet, WeightsWhoseSquaresAreNoNumbersHaveTheSameShares) {
  const RowMatrix<double> a = testing::random_attention(30, false, 2, 3.0);
  const auto shares = transform(a, 2);
  for (const double unit : {1e-200, 0x1p-1000, 1e200}) {
    const auto fields = transform(unit * a, 2);
    for (std::size_t k = 0; k + 1 < shares.size(); ++k) EXPECT_NEAR(fields[k], shares[k], 1e-13);
  }
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

// The power of one place at scale 1 of a signal that is `weight` there and 0 elsewhere.
double peak(double weight) { return weight * weight / std::sqrt(std::numbers::pi); }

std::vector<double> scalogram(const RowMatrix<double>& a, const SignalOptions& options,
                              const Support& support = {}) {
  const double scale = 1.0;
  std::vector<double> out(static_cast<std::size_t>(a.rows()), -1.0);
  WaveletScratch scratch;
  morlet_scalogram(view(a), support, options, &scale, 1, 6.0, out.data(), scratch);
  return out;
}

TEST(Signal, WithoutKeyZeroTheRestIsTheWhole) {
  constexpr Index n = 40;
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  a.col(0).setConstant(0.75);
  a.col(20).setConstant(0.25);
  SignalOptions options;
  options.drop_first = true;
  for (const auto kind : {SignalOptions::Kind::last, SignalOptions::Kind::mean}) {
    options.kind = kind;
    options.min_keys = n - 1;
    const auto fields = scalogram(a, options);
    EXPECT_NEAR(fields[19], peak(1.0), 1e-14);
    EXPECT_EQ(fields[n - 1], -1.0);
    options.min_keys = n;  // key 0 counts no more
    EXPECT_EQ(scalogram(a, options), std::vector<double>(n, -1.0));
  }
  a.col(20).setZero();
  options.min_keys = 2;
  for (const auto kind : {SignalOptions::Kind::last, SignalOptions::Kind::mean}) {
    options.kind = kind;
    EXPECT_EQ(scalogram(a, options), std::vector<double>(n, -1.0));
  }
}

TEST(Signal, ShortRowsDoNotEnterAMean) {
  // Query 29 sees 29 keys beside key 0, one too few; those behind it look at key 10.
  RowMatrix<double> a = RowMatrix<double>::Zero(40, 40);
  a(29, 5) = 1.0;
  for (Index i = 30; i < 40; ++i) a(i, 10) = 1.0;
  SignalOptions options;
  options.kind = SignalOptions::Kind::mean;
  options.drop_first = true;
  options.min_keys = 30;
  Support causal;
  causal.kind = Support::Kind::causal;
  EXPECT_NEAR(scalogram(a, options, causal)[9], peak(1.0), 1e-12);
}

TEST(Signal, MeansAreOverQueriesAndOverPairs) {
  constexpr Index n = 40;
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  a(5, 20) = a(7, 20) = 1.0;
  SignalOptions options;
  options.kind = SignalOptions::Kind::mean;
  EXPECT_NEAR(scalogram(a, options)[20], peak(2.0 / n), 1e-15);
  options.kind = SignalOptions::Kind::offset;
  a.setZero();
  a(30, 5) = 1.0;  // 2·(40 − 25) pairs are 25 apart
  EXPECT_NEAR(scalogram(a, options)[25], peak(1.0 / 30.0), 1e-15);
  // Without its mean a constant is nothing.
  options.kind = SignalOptions::Kind::last;
  options.detrend = true;
  a.setConstant(0.1);
  for (const double power : scalogram(a, options)) EXPECT_EQ(power, 0.0);
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
  // The power of 2^-500 is 2^-1000.
  const std::vector<double> of_all = out;
  a *= 0x1p-500;
  morlet_scalogram(view(a), Support{}, last(1).signal, scales, 2, 6.0, out.data(), scratch);
  for (std::size_t k = 0; k < out.size(); ++k) {
    EXPECT_NEAR(out[k] * 0x1p1000, of_all[k], 1e-15);
  }
}

}  // namespace
}  // namespace attnscope
