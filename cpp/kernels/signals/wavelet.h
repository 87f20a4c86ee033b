// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "matrix/matrix_view.h"
#include "signals/signal.h"

namespace attnscope {

// Levels that a signal of n entries carries with the four taps of db2: floor(log2(n / 3)), 0 for n
// < 6.
Index wavelet_levels(Index n);

struct WaveletOptions {
  SignalOptions signal;
  Index levels = 3;
  // Each level's coefficients are resampled to so many points and averaged over the signals; 0:
  // they are not.
  Index resample = 0;
};

struct WaveletScratch {
  SignalScratch signal;
  std::vector<double> coefficients;
  std::vector<double> approximation;
  std::vector<double> extended;
};

// Numbers per signal: the scales' shares of energy, their entropy, the entropy within each scale,
// and the relative error of the reconstruction.
inline Index wavelet_fields(Index levels) { return 2 * (levels + 1) + 2; }

// The periodised Daubechies transform with two vanishing moments (db2, four taps, orthogonal) of
// every signal of a map; scales run from the approximation and the coarsest detail to the finest.
// To `out` [signals, wavelet_fields(levels)]: energies p_j = E_j/ΣE; −Σ p_j log2 p_j; per scale −Σ
// q_k log2 q_k with q_k = d_k²/E_j (NaN where E_j is rounding, 1e-28 of the total); ‖x − IDWT(DWT
// x)‖/‖x‖. Where a length is odd the last entry is repeated, and only then is energy not conserved.
// To `profile` [levels + 1, resample]: linear interpolation, mean over signals. A signal that is
// all 0 or shorter than 3·2^levels keeps what `out` holds. O(n) a signal. Daubechies 1988, Mallat
// 1989, Blanco et al. 1998 (entropy).
template <class Scalar>
void wavelet_transform(const MatrixView<Scalar>& attention, const Support& support,
                       const WaveletOptions& options, double* out, double* profile,
                       WaveletScratch& scratch);

// |Σ_t x_t s^{−1/2} π^{−1/4} exp(−(t−b)²/2s²) exp(−iω(t−b)/s)|² for every scale s of `scales`
// [count] and place b, to `out` [count, n]: the first signal of the map that there is (not for
// `rows`), zeros outside it; places beyond a shorter signal keep what `out` holds. O(count · n²) at
// most. Torrence and Compo 1998.
template <class Scalar>
void morlet_scalogram(const MatrixView<Scalar>& attention, const Support& support,
                      const SignalOptions& options, const double* scales, Index count, double omega,
                      double* out, WaveletScratch& scratch);

}  // namespace attnscope
