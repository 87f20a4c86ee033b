// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"
#include "signals/fourier.h"
#include "signals/signal.h"

namespace attnscope {

// Entropy in position and in frequency with the bound of their sum, variance in position and in
// frequency with the bound of their product.
inline constexpr Index kUncertaintyFields = 6;

struct UncertaintyScratch {
  SignalScratch signal;
  Fourier fourier;
  std::vector<double> amplitude;
  std::vector<double> work;
};

// Uncertainty of the unit amplitude ψ of every signal p (made to sum to 1): ψ = √p, or with `root`
// false p/‖p‖. To `out` [signals, kUncertaintyFields], natural logarithms: the entropy of p; that
// of |DFT ψ|² of the unitary transform of the signal's own length m; log m, which no sum of the two
// is below (Maassen and Uffink 1988); the variance of position under |ψ|²; that of frequency ω in
// (−π, π] under |Σ_t ψ_t exp(−iωt)|²/2π; (1 − |Σ_t (−1)^t ψ_t|²)²/4, which no product of these two
// is below. A signal with a negative entry or nothing in it keeps what `out` holds. O(n² log n) for
// all rows.
template <class Scalar>
void uncertainty(const MatrixView<Scalar>& attention, const Support& support,
                 const SignalOptions& options, bool root, double* out, UncertaintyScratch& scratch);

}  // namespace attnscope
