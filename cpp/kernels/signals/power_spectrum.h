// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"
#include "signals/fourier.h"
#include "signals/signal.h"

namespace attnscope {

// What is said of one spectrum: shares of total power below a quarter, up to three quarters and up
// to the whole of the Nyquist frequency; the share and the frequency (in Nyquist's) of the
// strongest bin, the first of those that are alike; geometric over arithmetic mean; entropy in
// bits.
inline constexpr Index kSpectrumFields = 7;

struct SpectrumOptions {
  SignalOptions signal;
  bool hann = true;
  // The transform is at least so many times as long as the signal.
  double padding = 1.0;
  // Equal bands of [0, Nyquist] whose shares follow the fields; 0 for none.
  Index bands = 0;
};

struct SpectrumScratch {
  SignalScratch signal;
  Fourier fourier;
  std::vector<double> windowed;
  std::vector<std::vector<double>> windows;  // by length
  std::vector<double> power;
};

// One-sided power spectrum of every signal of a map, to `out` [signals, kSpectrumFields + bands]:
// low, mid, high, selectivity, peak, flatness, entropy, bands. A signal with no power (all 0) has
// no spectrum, and what has none keeps what `out` holds. Power at the level of rounding (1e-28 of
// the total) counts as 0, so the flatness of a tone is 0. O(n² log n) for all rows. Welch 1967,
// Johnston 1988 (flatness).
template <class Scalar>
void power_spectrum(const MatrixView<Scalar>& attention, const Support& support,
                    const SpectrumOptions& options, double* out, SpectrumScratch& scratch);

}  // namespace attnscope
