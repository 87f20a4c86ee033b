// SPDX-License-Identifier: MIT
#include "kernels/signals/power_spectrum.h"

#include "inputs.h"

namespace attnscope::fuzz {

template <class Scalar>
void spectrum(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 150);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  SpectrumOptions options;
  options.signal = read_signals(bytes);
  options.hann = bytes.flag();
  options.padding = 1.0 + 3.0 * bytes.unit();
  options.bands = bytes.between(0, 9);
  if (!map.finite()) return;
  static SpectrumScratch reused;
  SpectrumScratch fresh;
  const Index fields = kSpectrumFields + options.bands;
  const Index count = signal_count(options.signal, n);
  std::vector<double> out = unset(count * fields);
  std::vector<double> again = unset(count * fields);
  power_spectrum(map.view(), seen.support(), options, out.data(), fresh);
  power_spectrum(map.view(), seen.support(), options, again.data(), reused);
  LAW(same_bits(out, again), "scratch changes the spectrum");
  if (!map.tame()) return;
  for (Index s = 0; s < count; ++s) {
    const double* at = out.data() + s * fields;
    if (std::isnan(at[0])) continue;
    LAW(near(at[0] + at[1] + at[2], 1.0, 1e-12), "shares sum to %.17g", at[0] + at[1] + at[2]);
    for (Index k = 0; k < 6; ++k)
      LAW(at[k] >= 0.0 && at[k] <= 1.0 + 1e-12, "field %ld is %.17g", long(k), at[k]);
    LAW(at[6] >= -1e-12 && at[6] <= std::log2(2.0 * double(n) * options.padding + 4.0),
        "entropy %g", at[6]);
    double bands = 0.0;
    for (Index b = 0; b < options.bands; ++b) bands += at[kSpectrumFields + b];
    LAW(options.bands == 0 || near(bands, 1.0, 1e-12), "bands sum to %.17g", bands);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::spectrum)
