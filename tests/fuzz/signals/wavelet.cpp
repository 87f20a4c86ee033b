// SPDX-License-Identifier: MIT
#include "kernels/signals/wavelet.h"

#include "inputs.h"

namespace attnscope::fuzz {

template <class Scalar>
void wavelet(Bytes& bytes) {
  const Index n = read_size(bytes, 60, 150);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  WaveletOptions options;
  options.signal = read_signals(bytes);
  options.levels = bytes.between(1, std::max<Index>(1, wavelet_levels(n)));
  options.resample = bytes.flag() ? bytes.between(1, 20) : 0;
  const Index scales = bytes.between(1, 4);
  std::vector<double> widths;
  for (Index s = 0; s < scales; ++s) widths.push_back(0.1 + 40.0 * bytes.unit());
  if (!map.finite()) return;
  static WaveletScratch reused;
  WaveletScratch fresh;
  const Index fields = wavelet_fields(options.levels);
  const Index count = signal_count(options.signal, n);
  std::vector<double> out = unset(count * fields);
  std::vector<double> again = unset(count * fields);
  std::vector<double> profile = unset((options.levels + 1) * options.resample);
  std::vector<double> profile_again = profile;
  wavelet_transform(map.view(), seen.support(), options, out.data(), profile.data(), fresh);
  wavelet_transform(map.view(), seen.support(), options, again.data(), profile_again.data(),
                    reused);
  LAW(same_bits(out, again) && same_bits(profile, profile_again), "scratch changes the transform");
  if (map.tame()) {
    for (Index s = 0; s < count; ++s) {
      const double* at = out.data() + s * fields;
      if (std::isnan(at[0])) continue;
      double energy = 0.0;
      for (Index k = 0; k <= options.levels; ++k) {
        LAW(at[k] >= 0.0, "a share of %g", at[k]);
        energy += at[k];
        const double inside = at[options.levels + 2 + k];
        LAW(!(inside < -1e-12) && !(inside > std::log2(double(n)) + 1e-9), "an entropy of %g",
            inside);
      }
      LAW(near(energy, 1.0, 1e-12), "shares sum to %.17g", energy);
      const double entropy = at[options.levels + 1];
      LAW(entropy >= -1e-12 && entropy <= std::log2(double(options.levels + 1)) + 1e-12,
          "entropy %g", entropy);
      LAW(at[fields - 1] >= 0.0 && at[fields - 1] < 1e-12, "reconstruction is off by %g",
          at[fields - 1]);
    }
  }
  if (options.signal.kind == SignalOptions::Kind::rows) return;
  std::vector<double> scalogram = unset(scales * n);
  std::vector<double> scalogram_again = scalogram;
  morlet_scalogram(map.view(), seen.support(), options.signal, widths.data(), scales, 6.0,
                   scalogram.data(), fresh);
  morlet_scalogram(map.view(), seen.support(), options.signal, widths.data(), scales, 6.0,
                   scalogram_again.data(), reused);
  LAW(same_bits(scalogram, scalogram_again), "scratch changes the scalogram");
  for (const double power : scalogram) LAW(!(power < 0.0), "a power of %g", power);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::wavelet)
