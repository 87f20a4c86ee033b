// SPDX-License-Identifier: MIT
#include "kernels/signals/power_spectrum.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "signals/signal_reader.h"

namespace attnscope {
namespace {

constexpr double kRounding = 1e-28;
// Bins that are alike in exact arithmetic, as all are of attention to a single key, differ by
// rounding: the first whose power is this part of the largest is the strongest.
constexpr double kTie = 1.0 - 1e-9;

// The periodic Hann window, its cosine by rotation: an angle addition is a quarter of a cosine's
// price.
void hann_window(Index count, double* out) {
  const double step = 2.0 * std::numbers::pi / static_cast<double>(count);
  const double step_cos = std::cos(step);
  const double step_sin = std::sin(step);
  double c = 1.0;
  double s = 0.0;
  for (Index t = 0; t < count; ++t) {
    if (t % 64 == 0) {  // the rotation's error grows with every step
      c = std::cos(step * static_cast<double>(t));
      s = std::sin(step * static_cast<double>(t));
    }
    out[t] = 0.5 - 0.5 * c;
    const double next = c * step_cos - s * step_sin;
    s = s * step_cos + c * step_sin;
    c = next;
  }
}

// A longer signal's window is made anew: its transform takes longer, and all windows that are kept
// take 4 MiB at most.
constexpr Index kLongestKept = 1024;

// The window of a length, which signals of other maps of a batch mostly have too.
const double* window_of(Index count, SpectrumScratch& scratch) {
  const auto place = static_cast<std::size_t>(std::min(count, kLongestKept + 1));
  if (scratch.windows.size() <= place) scratch.windows.resize(place + 1);
  std::vector<double>& window = scratch.windows[place];
  if (static_cast<Index>(window.size()) != count) {
    window.resize(count);
    hann_window(count, window.data());
  }
  return window.data();
}

// Power of each bin spread evenly over the frequencies nearest to it, cut into equal bands.
void band_shares(const double* power, Index bins, double total, Index bands, double* out) {
  std::fill(out, out + bands, 0.0);
  const auto width =
      static_cast<double>(bands) / static_cast<double>(bins - 1);  // of a bin, in bands
  for (Index k = 0; k < bins; ++k) {
    const double low = std::max(0.0, (static_cast<double>(k) - 0.5) * width);
    const double high =
        std::min(static_cast<double>(bands), (static_cast<double>(k) + 0.5) * width);
    for (Index b = static_cast<Index>(low); b < bands && static_cast<double>(b) < high; ++b) {
      const double part =
          std::min(high, static_cast<double>(b + 1)) - std::max(low, static_cast<double>(b));
      out[b] += power[k] / total * part / (high - low);
    }
  }
}

// `power` [bins] of the two-sided spectrum, bins - 1 being the Nyquist frequency.
void describe(double* power, Index bins, Index bands, double* out) {
  const double nyquist = static_cast<double>(bins - 1);
  double total = 0.0;
  double largest = 0.0;
  for (Index k = 0; k < bins; ++k) {
    if (k > 0 && k < bins - 1) power[k] *= 2.0;
    total += power[k];
    largest = std::max(largest, power[k]);
  }
  if (!(total > 0.0)) return;
  Index peak = 0;
  while (power[peak] < kTie * largest) ++peak;
  Index gaps = 0;
  for (Index k = 0; k < bins; ++k) {
    const bool is_rounding = power[k] <= kRounding * total;
    power[k] = is_rounding ? 0.0 : power[k];
    gaps += is_rounding ? 1 : 0;
  }
  // bins below a quarter of the Nyquist frequency, up to three quarters and up to the whole
  const Index band_ends[3] = {(bins + 2) / 4, (3 * bins) / 4, bins};
  Index in_band = 0;
  Lanes sum_of_logs{};
  Lanes sum_of_p_logs{};
  for_each_lane(power, 0, bins, bins, [&](Lanes p, Index k) {
    p *= broadcast(1.0 / total);
    for (Index lane = bins - k; lane < kPackWidth; ++lane) p[lane] = 1.0;  // log 1 = 0
    const Lanes log_p = bounded_log(p);
    sum_of_logs += log_p;
    sum_of_p_logs += p * log_p;
  });
  const double mean_log = sum_of_lanes(sum_of_logs) / static_cast<double>(bins);
  for (Index band = 0; band < 3; ++band) {
    double share = 0.0;
    for (; in_band < band_ends[band]; ++in_band) share += power[in_band];
    out[band] = share / total;
  }
  out[3] = largest / total;
  out[4] = static_cast<double>(peak) / nyquist;
  out[5] = gaps > 0 ? 0.0 : std::min(1.0, std::exp(mean_log) * static_cast<double>(bins));
  out[6] = std::max(0.0, -sum_of_lanes(sum_of_p_logs) / std::numbers::ln2);
  if (bands > 0) band_shares(power, bins, total, bands, out + kSpectrumFields);
}

}  // namespace

template <class Scalar>
void power_spectrum(const MatrixView<Scalar>& attention, const Support& support,
                    const SpectrumOptions& options, double* out, SpectrumScratch& scratch) {
  const Index width = kSpectrumFields + options.bands;
  const auto describe_signal = [&](Index index, const double* x, Index count, int) {
    const auto padded = static_cast<Index>(std::ceil(options.padding * static_cast<double>(count)));
    const Index size = fast_length(std::max(count, padded));
    scratch.power.resize(size / 2 + 1);
    if (options.hann) {
      scratch.windowed.resize(count);
      const double* window = window_of(count, scratch);
      for (Index t = 0; t < count; ++t) scratch.windowed[t] = x[t] * window[t];
      // The window is 0 where it begins, and what is there may have been all.
      rescale(scratch.windowed.data(), count);
      x = scratch.windowed.data();
    }
    scratch.fourier.power(x, count, size, scratch.power.data());
    describe(scratch.power.data(), size / 2 + 1, options.bands, out + index * width);
  };
  for_each_signal(attention, support, options.signal, scratch.signal, describe_signal);
}

ATTNSCOPE_COMPILE(power_spectrum);

}  // namespace attnscope
