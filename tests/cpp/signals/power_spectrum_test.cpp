// SPDX-License-Identifier: MIT
#include "kernels/signals/power_spectrum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <numbers>
#include <random>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

std::vector<double> noise(Index count) {
  std::mt19937 generator(5);
  std::normal_distribution<double> normal;
  std::vector<double> x(static_cast<std::size_t>(count));
  for (double& value : x) value = normal(generator);
  return x;
}

std::vector<double> direct_power(const std::vector<double>& x, Index size) {
  std::vector<double> power;
  for (Index k = 0; k < size; ++k) {
    std::complex<double> sum = 0.0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const auto turn = double(k * static_cast<Index>(t) % size) / double(size);
      sum += x[t] * std::polar(1.0, -2.0 * std::numbers::pi * turn);
    }
    power.push_back(std::norm(sum));
  }
  return power;
}

TEST(Fourier, EqualsTheDefiningSum) {
  Fourier fourier;
  for (Index count : {1, 2, 3, 4, 17, 60, 97, 509}) {
    const std::vector<double> x = noise(count);
    for (const Index size : {count, fast_length(2 * count)}) {
      std::vector<double> power(static_cast<std::size_t>(size / 2 + 1));
      fourier.power(x.data(), count, size, power.data());
      const std::vector<double> expected = direct_power(x, size);
      for (std::size_t k = 0; k < power.size(); ++k) {
        EXPECT_NEAR(power[k], expected[k], 1e-10 + 1e-12 * expected[k]) << count << " " << size;
      }
    }
  }
}

TEST(Fourier, AutocorrelationIsTheSumOfProducts) {
  Fourier fourier;
  const std::vector<double> x = noise(37);
  std::vector<double> correlations(37);
  fourier.autocorrelation(x.data(), 37, correlations.data());
  for (std::size_t lag = 0; lag < 37; ++lag) {
    double expected = 0.0;
    for (std::size_t t = 0; t + lag < 37; ++t) expected += x[t] * x[t + lag];
    EXPECT_NEAR(correlations[lag], expected, 1e-12);
  }
}

TEST(Fourier, FastLengthsAreMultiplesOfFourOfSmallPrimes) {
  EXPECT_EQ(fast_length(1), 4);
  EXPECT_EQ(fast_length(33), 36);
  EXPECT_EQ(fast_length(49), 60);
  EXPECT_EQ(fast_length(128), 128);
}

TEST(PowerSpectrum, ATonePutsAllItsPowerIntoItsBand) {
  const Index n = 64;
  for (Index cycles : {4, 8, 16, 24, 28}) {  // 8 and 24 are the bands' own edges
    RowMatrix<double> a(n, n);
    for (Index j = 0; j < n; ++j) {
      a.col(j).setConstant(std::cos(2.0 * std::numbers::pi * double(cycles * j) / double(n)));
    }
    SpectrumOptions options;
    options.signal.kind = SignalOptions::Kind::last;
    options.hann = false;
    std::vector<double> out(kSpectrumFields, -1.0);
    SpectrumScratch scratch;
    power_spectrum(view(a), Support{}, options, out.data(), scratch);
    const std::size_t band = cycles < 8 ? 0 : cycles < 24 ? 1 : 2;
    EXPECT_NEAR(out[band], 1.0, 1e-12);
    EXPECT_NEAR(out[3], 1.0, 1e-12);
    EXPECT_DOUBLE_EQ(out[4], double(cycles) / 32.0);
    EXPECT_EQ(out[5], 0.0);
  }
}

TEST(PowerSpectrum, AConstantIsTheHannWindow) {
  SpectrumOptions options;
  options.signal.kind = SignalOptions::Kind::last;
  std::vector<double> out(kSpectrumFields, -1.0);
  SpectrumScratch scratch;
  const RowMatrix<double> constant = RowMatrix<double>::Constant(64, 64, 0.2);
  power_spectrum(view(constant), Support{}, options, out.data(), scratch);
  EXPECT_NEAR(out[3], 2.0 / 3.0, 1e-12);
}

TEST(PowerSpectrum, TheHannWindowIsNothingWhereItBegins) {
  SpectrumOptions options;
  options.signal.kind = SignalOptions::Kind::last;
  SpectrumScratch scratch;
  RowMatrix<double> impulse = RowMatrix<double>::Zero(64, 64);
  impulse(63, 0) = 1.0;
  std::vector<double> out(kSpectrumFields, -1.0);
  power_spectrum(view(impulse), Support{}, options, out.data(), scratch);
  EXPECT_EQ(out, std::vector<double>(kSpectrumFields, -1.0));
  impulse.row(63).setZero();
  impulse(63, 32) = 1.0;
  power_spectrum(view(impulse), Support{}, options, out.data(), scratch);
  // White: 31 bins count twice, the two at the ends once.
  EXPECT_NEAR(out[3], 2.0 / 64.0, 1e-14);
}

TEST(PowerSpectrum, TheNyquistFrequencyCountsOnceAsTheMeanDoes) {
  SpectrumOptions options;
  options.signal.kind = SignalOptions::Kind::last;
  options.hann = false;
  SpectrumScratch scratch;
  RowMatrix<double> a = RowMatrix<double>::Zero(64, 64);
  for (Index j = 0; j < 64; j += 2) a(63, j) = 1.0;
  std::vector<double> out(kSpectrumFields, -1.0);
  power_spectrum(view(a), Support{}, options, out.data(), scratch);
  EXPECT_NEAR(out[0], 0.5, 1e-14);
  EXPECT_NEAR(out[2], 0.5, 1e-14);
}

TEST(PowerSpectrum, ShortAndEmptySignalsKeepWhatWasThere) {
  const RowMatrix<double> a = RowMatrix<double>::Zero(40, 40);
  std::vector<double> out(40 * kSpectrumFields, -7.0);
  SpectrumScratch scratch;
  power_spectrum(view(a), Support{}, SpectrumOptions{}, out.data(), scratch);
  for (double value : out) EXPECT_EQ(value, -7.0);
}

TEST(PowerSpectrum, BandsConserveThePower) {
  const RowMatrix<double> a = testing::random_attention(45, true, 3, 2.0);
  SpectrumOptions options;
  options.bands = 13;
  const Index width = kSpectrumFields + 13;
  std::vector<double> out(static_cast<std::size_t>(45 * width), -1.0);
  SpectrumScratch scratch;
  Support causal;
  causal.kind = Support::Kind::causal;
  power_spectrum(view(a), causal, options, out.data(), scratch);
  for (Index i = 31; i < 45; ++i) {
    double sum = 0.0;
    for (Index b = 0; b < 13; ++b)
      sum += out[static_cast<std::size_t>(i * width + kSpectrumFields + b)];
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

}  // namespace
}  // namespace attnscope
