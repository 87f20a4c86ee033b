// SPDX-License-Identifier: MIT
#include "kernels/signals/uncertainty.h"

#include <cmath>
#include <numbers>

#include "signals/signal_reader.h"

namespace attnscope {
namespace {

// −Σ (p/total) log (p/total) of non-negative numbers.
double entropy(const double* p, Index count, double total) {
  const Lanes scale = broadcast(1.0 / total);
  return entropy_of(p, count, [=](Lanes x) { return x * scale; });
}

double sum_of(const double* x, Index count) { return std::accumulate(x, x + count, 0.0); }

void describe(const double* p, Index count, bool root, double* out, UncertaintyScratch& scratch) {
  const double mass = sum_of(p, count);
  if (!(mass > 0.0) || std::any_of(p, p + count, [](double x) { return x < 0.0; })) return;
  std::vector<double>& psi = scratch.amplitude;
  psi.assign(p, p + count);
  double norm = 0.0;
  for (double& x : psi) {
    x = root ? std::sqrt(x / mass) : x / mass;
    norm += x * x;
  }
  norm = std::sqrt(norm);
  double alternating = 0.0;
  double mean = 0.0;
  for (Index t = 0; t < count; ++t) {
    double& x = psi[t];
    x /= norm;
    alternating += t % 2 == 0 ? x : -x;
    mean += static_cast<double>(t) * x * x;
  }
  double variance = 0.0;
  for (Index t = 0; t < count; ++t) {
    const double x = psi[t];
    const double distance = static_cast<double>(t) - mean;
    variance += distance * distance * x * x;
  }
  std::vector<double>& work = scratch.work;
  work.resize(count);
  scratch.fourier.power(psi.data(), count, count, work.data());
  for (Index k = count / 2 + 1; k < count; ++k) work[k] = work[count - k];
  const double spectral = entropy(work.data(), count, sum_of(work.data(), count));
  // ∫ω²|Ψ|²/2π = Σ_k r_k c_k, where c_k are the Fourier coefficients of ω² on (−π, π].
  scratch.fourier.autocorrelation(psi.data(), count, work.data());
  double frequency = work[0] * std::numbers::pi * std::numbers::pi / 3.0;
  for (Index k = 1; k < count; ++k) {
    const auto square = static_cast<double>(k) * static_cast<double>(k);
    frequency += (k % 2 == 0 ? 4.0 : -4.0) / square * work[k];
  }
  const double open = 1.0 - alternating * alternating;
  out[0] = entropy(p, count, mass);
  out[1] = spectral;
  out[2] = std::log(static_cast<double>(count));
  out[3] = variance;
  out[4] = std::max(0.0, frequency);
  out[5] = open * open / 4.0;
}

}  // namespace

template <class Scalar>
void uncertainty(const MatrixView<Scalar>& attention, const Support& support,
                 const SignalOptions& options, bool root, double* out,
                 UncertaintyScratch& scratch) {
  for_each_signal(attention, support, options, scratch.signal,
                  [&](Index index, const double* x, Index count, int) {
                    describe(x, count, root, out + index * kUncertaintyFields, scratch);
                  });
}

ATTNSCOPE_COMPILE(uncertainty);

}  // namespace attnscope
