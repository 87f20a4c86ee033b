// SPDX-License-Identifier: MIT
#include "kernels/signals/wavelet.h"

#include <cmath>
#include <complex>
#include <numbers>

#include "signals/signal_reader.h"

namespace attnscope {
namespace {

constexpr double kRoot3 = std::numbers::sqrt3;
constexpr double kNorm = 4.0 * std::numbers::sqrt2;
// Analysis filters; the high-pass one is the low-pass one backwards with alternating signs.
constexpr double kLow[4] = {(1.0 - kRoot3) / kNorm, (3.0 - kRoot3) / kNorm, (3.0 + kRoot3) / kNorm,
                            (1.0 + kRoot3) / kNorm};
constexpr double kHigh[4] = {-kLow[3], kLow[2], -kLow[1], kLow[0]};
// Energy below it, as a share of the total, is rounding.
constexpr double kRounding = 1e-28;
// exp(−z²/2) is below 1e-17 beyond it.
constexpr double kMorletReach = 9.0;

Index halved(Index n) { return (n + 1) / 2; }

// One level: x [n] to approximation and detail [halved(n)]: low_k = Σ_j kLow_j x_{2k+2−j}.
void analyse(const double* x, Index n, double* low, double* high) {
  const Index half = halved(n);
  const auto filter = [&](Index k, double a, double b, double c, double d) {
    low[k] = kLow[0] * a + kLow[1] * b + kLow[2] * c + kLow[3] * d;
    high[k] = kHigh[0] * a + kHigh[1] * b + kHigh[2] * c + kHigh[3] * d;
  };
  const auto at = [&](Index t) { return x[std::min((t + 2 * half) % (2 * half), n - 1)]; };
  const auto at_the_ends = [&](Index k) {
    filter(k, at(2 * k + 2), at(2 * k + 1), at(2 * k), at(2 * k - 1));
  };
  at_the_ends(0);
  Index k = 1;
  for (; 2 * k + 2 < n; ++k) filter(k, x[2 * k + 2], x[2 * k + 1], x[2 * k], x[2 * k - 1]);
  for (; k < half; ++k) at_the_ends(k);
}

// The transpose of `analyse`: x [2·half] from approximation and detail [half].
void synthesise(const double* low, const double* high, Index half, double* x) {
  const auto even = [&](Index k, Index before) {
    x[2 * k] =
        kLow[2] * low[k] + kHigh[2] * high[k] + kLow[0] * low[before] + kHigh[0] * high[before];
  };
  const auto odd = [&](Index k, Index after) {
    x[2 * k + 1] =
        kLow[1] * low[k] + kHigh[1] * high[k] + kLow[3] * low[after] + kHigh[3] * high[after];
  };
  even(0, half - 1);
  for (Index k = 1; k < half; ++k) {
    even(k, k - 1);
    odd(k - 1, k);
  }
  odd(half - 1, 0);
}

double energy(const double* x, Index count) {
  return Eigen::Map<const Eigen::VectorXd>(x, count).squaredNorm();
}

// −Σ p log2 p of x²/total.
double entropy_of_squares(const double* x, Index count, double total) {
  const Lanes scale = broadcast(1.0 / total);
  return entropy_of(x, count, [=](Lanes value) { return value * value * scale; }) /
         std::numbers::ln2;
}

// Adds x [count] times `unit`, read at `points` equal steps from its first to its last entry.
void add_resampled(const double* x, Index count, Index points, double unit, double* sum) {
  for (Index r = 0; r < points; ++r) {
    const double place = points == 1 ? 0.0
                                     : static_cast<double>(r) * static_cast<double>(count - 1) /
                                           static_cast<double>(points - 1);
    const Index below = std::min(static_cast<Index>(place), count - 1);
    const Index above = std::min(below + 1, count - 1);
    const double part = place - static_cast<double>(below);
    sum[r] += unit * ((1.0 - part) * x[below] + part * x[above]);
  }
}

// The coefficients of all scales in one buffer, coarse to fine.
class Decomposition {
 public:
  Decomposition(const double* x, Index n, Index levels, WaveletScratch& scratch)
      : levels_(levels), scratch_(scratch), starts_(levels + 2) {
    sizes_.assign(levels + 1, n);
    for (Index level = 1; level <= levels; ++level) size(level) = halved(size(level - 1));
    starts_[0] = 0;
    starts_[1] = size(levels);
    for (Index scale = 1; scale <= levels; ++scale) {
      starts_[scale + 1] = starts_[scale] + size(levels - scale + 1);
    }
    scratch.coefficients.resize(starts_.back());
    scratch.approximation.assign(x, x + n);
    scratch.extended.resize(n + 1);
    for (Index level = 1; level <= levels; ++level) {
      analyse(scratch.approximation.data(), size(level - 1), scratch.extended.data(),
              scale(levels - level + 1));
      std::copy_n(scratch.extended.begin(), size(level), scratch.approximation.begin());
    }
    std::copy_n(scratch.approximation.begin(), size(levels), scale(0));
  }

  // Scale 0 is the approximation, scale `levels` the finest detail.
  double* scale(Index s) { return scratch_.coefficients.data() + starts_[s]; }
  Index count(Index s) const { return starts_[s + 1] - starts_[s]; }

  // The signal again, in scratch that the next call overwrites.
  const double* reconstructed() {
    std::copy_n(scale(0), size(levels_), scratch_.approximation.begin());
    for (Index level = levels_; level >= 1; --level) {
      synthesise(scratch_.approximation.data(), scale(levels_ - level + 1), size(level),
                 scratch_.extended.data());
      std::copy_n(scratch_.extended.begin(), size(level - 1), scratch_.approximation.begin());
    }
    return scratch_.approximation.data();
  }

 private:
  Index& size(Index level) { return sizes_[level]; }

  Index levels_;
  WaveletScratch& scratch_;
  std::vector<Index> starts_;
  std::vector<Index> sizes_;
};

void describe(const double* x, Index n, const WaveletOptions& options, double* out,
              Decomposition& decomposition) {
  const Index scales = options.levels + 1;
  double total = 0.0;
  for (Index s = 0; s < scales; ++s)
    total += out[s] = energy(decomposition.scale(s), decomposition.count(s));
  double* within = out + scales + 1;
  double between = 0.0;
  for (Index s = 0; s < scales; ++s) {
    const double of_scale = out[s];
    within[s] = of_scale > kRounding * total
                    ? entropy_of_squares(decomposition.scale(s), decomposition.count(s), of_scale)
                    : kNaN;
    out[s] = of_scale / total;
    if (out[s] > 0.0) between -= out[s] * std::log2(out[s]);
  }
  out[scales] = std::max(0.0, between);
  const double* again = decomposition.reconstructed();
  const double error =
      (Eigen::Map<const Eigen::VectorXd>(x, n) - Eigen::Map<const Eigen::VectorXd>(again, n))
          .squaredNorm();
  out[2 * scales + 1] = std::sqrt(error / energy(x, n));
}

}  // namespace

Index wavelet_levels(Index n) {
  Index levels = 0;
  while (6 * (Index{1} << levels) <= n) ++levels;
  return levels;
}

template <class Scalar>
void wavelet_transform(const MatrixView<Scalar>& attention, const Support& support,
                       const WaveletOptions& options, double* out, double* profile,
                       WaveletScratch& scratch) {
  const Index points = options.resample;
  const Index width = wavelet_fields(options.levels);
  std::vector<double> sum((options.levels + 1) * points, 0.0);
  Index signals = 0;
  for_each_signal(attention, support, options.signal, scratch.signal,
                  [&](Index index, const double* x, Index count, int exponent) {
                    if (wavelet_levels(count) < options.levels || !(energy(x, count) > 0.0)) return;
                    Decomposition decomposition(x, count, options.levels, scratch);
                    for (Index s = 0; points > 0 && s <= options.levels; ++s) {
                      add_resampled(decomposition.scale(s), decomposition.count(s), points,
                                    std::ldexp(1.0, exponent), sum.data() + s * points);
                    }
                    describe(x, count, options, out + index * width, decomposition);
                    ++signals;
                  });
  if (signals == 0) return;
  for (std::size_t k = 0; k < sum.size(); ++k) profile[k] = sum[k] / static_cast<double>(signals);
}

template <class Scalar>
void morlet_scalogram(const MatrixView<Scalar>& attention, const Support& support,
                      const SignalOptions& options, const double* scales, Index count, double omega,
                      double* out, WaveletScratch& scratch) {
  const Index n = attention.cols();
  for_each_signal(
      attention, support, options, scratch.signal,
      [&](Index, const double* x, Index m, int exponent) {
        std::vector<std::complex<double>> wavelet;
        for (Index s = 0; s < count; ++s) {
          const double scale = scales[s];
          const auto reach = static_cast<Index>(
              std::min(static_cast<double>(m - 1), std::ceil(kMorletReach * scale)));
          wavelet.assign(2 * reach + 1, {});
          const double norm = std::pow(std::numbers::pi, -0.25) / std::sqrt(scale);
          for (Index d = -reach; d <= reach; ++d) {
            const double z = static_cast<double>(d) / scale;
            wavelet[d + reach] = std::polar(norm * std::exp(-0.5 * z * z), -omega * z);
          }
          for (Index b = 0; b < m; ++b) {
            double real = 0.0;
            double imaginary = 0.0;
            for (Index t = std::max<Index>(0, b - reach); t <= std::min(m - 1, b + reach); ++t) {
              const std::complex<double>& w = wavelet[t - b + reach];
              real += x[t] * w.real();
              imaginary += x[t] * w.imag();
            }
            out[s * n + b] = std::ldexp(real * real + imaginary * imaginary, 2 * exponent);
          }
        }
      });
}

ATTNSCOPE_COMPILE(wavelet_transform);
ATTNSCOPE_COMPILE(morlet_scalogram);

}  // namespace attnscope
