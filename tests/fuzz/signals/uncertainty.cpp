// SPDX-License-Identifier: MIT
#include "kernels/signals/uncertainty.h"

#include "inputs.h"

namespace attnscope::fuzz {

template <class Scalar>
void relation(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 150);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  SignalOptions options = read_signals(bytes);
  options.detrend = false;
  const bool root = bytes.flag();
  if (!map.finite()) return;
  static UncertaintyScratch reused;
  UncertaintyScratch fresh;
  const Index count = signal_count(options, n);
  std::vector<double> out = unset(count * kUncertaintyFields);
  std::vector<double> again = unset(count * kUncertaintyFields);
  uncertainty(map.view(), seen.support(), options, root, out.data(), fresh);
  uncertainty(map.view(), seen.support(), options, root, again.data(), reused);
  LAW(same_bits(out, again), "scratch changes the uncertainty");
  if (!map.tame()) return;
  for (Index s = 0; s < count; ++s) {
    const double* at = out.data() + s * kUncertaintyFields;
    if (std::isnan(at[0])) continue;
    LAW(at[0] >= -1e-12 && at[1] >= -1e-12, "entropies %g, %g", at[0], at[1]);
    if (root)
      LAW(at[0] + at[1] >= at[2] - 1e-9, "entropies %.17g + %.17g below %.17g", at[0], at[1],
          at[2]);
    LAW(at[3] >= -1e-9 && at[4] >= -1e-12, "variances %g, %g", at[3], at[4]);
    LAW(at[3] * at[4] >= at[5] - 1e-9 * (1.0 + at[5]), "variances %.17g · %.17g below %.17g", at[3],
        at[4], at[5]);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::relation)
