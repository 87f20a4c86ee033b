// SPDX-License-Identifier: MIT
#include "signals/fourier.h"

#include <algorithm>
#include <complex>
#include <map>
#include <numbers>
#include <unsupported/Eigen/FFT>
#include <vector>

namespace attnscope {
namespace {

using Complex = std::complex<double>;

// A transform costs about the sum of its prime factors times its length, a chirp three transforms
// of more than twice the length.
constexpr Index kLargestDirectPrime = 13;

Index largest_prime_factor(Index n) {
  Index largest = 1;
  for (Index p = 2; p * p <= n; ++p) {
    while (n % p == 0) {
      largest = p;
      n /= p;
    }
  }
  return std::max(largest, n);
}

// exp(−iπt²/count) and the transform of its conjugate, wrapped round.
struct Chirp {
  Index size = 0;
  std::vector<Complex> factor;
  std::vector<Complex> response;
};

}  // namespace

struct Fourier::Plans {
  Eigen::FFT<double> transform{Eigen::default_fft_impl<double>(), Eigen::FFT<double>::HalfSpectrum};
  std::map<Index, Chirp> chirps;
  std::vector<double> padded;
  std::vector<Complex> spectrum;
  std::vector<Complex> product;

  // The first half of the transform of x [count] and zeros up to `size`, to `spectrum`.
  void forward(const double* x, Index count, Index size) {
    padded.assign(size, 0.0);
    std::copy(x, x + count, padded.begin());
    spectrum.resize(size / 2 + 1);
    transform.fwd(spectrum.data(), padded.data(), size);
  }

  const Chirp& chirp(Index count) {
    Chirp& chirp = chirps[count];
    if (chirp.size != 0) return chirp;
    chirp.size = fast_length(2 * count - 1);
    const auto size = static_cast<std::size_t>(chirp.size);
    std::vector<Complex> wrapped(size);
    for (Index t = 0; t < count; ++t) {
      // t² modulo 2·count keeps the angle small, and with it its error.
      const double angle = std::numbers::pi * static_cast<double>((t * t) % (2 * count)) /
                           static_cast<double>(count);
      chirp.factor.push_back(std::polar(1.0, -angle));
      wrapped[t] = std::polar(1.0, angle);
      if (t > 0) wrapped[size - t] = std::polar(1.0, angle);
    }
    chirp.response.resize(size);
    transform.fwd(chirp.response.data(), wrapped.data(), chirp.size);
    return chirp;
  }
};

Fourier::Fourier() : plans_(new Plans, [](Plans* plans) { delete plans; }) {}

void Fourier::power(const double* x, Index count, Index size, double* power) {
  plans_->forward(x, count, size);
  for (Index k = 0; k <= size / 2; ++k) power[k] = std::norm(plans_->spectrum[k]);
}

void Fourier::exact_power(const double* x, Index count, double* power) {
  Plans& plans = *plans_;
  const auto length = static_cast<std::size_t>(count);
  if (count == 1) {  // which kissfft does not know
    power[0] = x[0] * x[0];
    return;
  }
  if (largest_prime_factor(count) <= kLargestDirectPrime) {
    plans.forward(x, count, count);
    for (std::size_t k = 0; k < length; ++k) {
      power[k] = std::norm(plans.spectrum[std::min(k, length - k)]);
    }
    return;
  }
  const Chirp& chirp = plans.chirp(count);
  const auto size = static_cast<std::size_t>(chirp.size);
  plans.product.assign(size, Complex(0.0));
  for (std::size_t t = 0; t < length; ++t) plans.product[t] = x[t] * chirp.factor[t];
  plans.spectrum.resize(size);
  plans.transform.fwd(plans.spectrum.data(), plans.product.data(), chirp.size);
  for (std::size_t k = 0; k < size; ++k) plans.spectrum[k] *= chirp.response[k];
  plans.transform.inv(plans.product.data(), plans.spectrum.data(), chirp.size);
  for (std::size_t k = 0; k < length; ++k) power[k] = std::norm(plans.product[k]);
}

void Fourier::autocorrelation(const double* x, Index count, double* out) {
  Plans& plans = *plans_;
  const Index size = fast_length(2 * count - 1);
  const auto half = static_cast<std::size_t>(size) / 2;
  std::vector<double>& values = plans.padded;
  plans.forward(x, count, size);
  for (std::size_t k = 0; k <= half; ++k) {
    values[k] = std::norm(plans.spectrum[k]);
    if (k > 0) values[static_cast<std::size_t>(size) - k] = values[k];
  }
  // The power is real and even, so its inverse transform is the forward one over the size.
  plans.transform.fwd(plans.spectrum.data(), values.data(), size);
  for (Index k = 0; k < count; ++k) {
    out[k] = plans.spectrum[k].real() / static_cast<double>(size);
  }
}

Index fast_length(Index count) {
  for (Index quarters = std::max<Index>(1, (count + 3) / 4);; ++quarters) {
    if (largest_prime_factor(quarters) <= 5) return 4 * quarters;
  }
}

}  // namespace attnscope
