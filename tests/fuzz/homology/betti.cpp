// SPDX-License-Identifier: MIT
#include "kernels/homology/betti.h"

#include "kernels/homology/persistence.h"
#include "oracles.h"

namespace attnscope::fuzz {

template <class Scalar>
void betti(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 140);
  const Map<Scalar> map(bytes, n);
  const Symmetrize rules[] = {Symmetrize::max, Symmetrize::mean, Symmetrize::min};
  const Symmetrize rule = rules[bytes.byte() % 3];
  const Index count = bytes.between(1, 9);
  const Eigen::MatrixXd weights = filtration_weights(map, rule);
  std::vector<double> thresholds;
  for (Index t = 0; t < count; ++t) {
    const double entry = weights(bytes.between(0, n - 1), bytes.between(0, n - 1));
    thresholds.push_back(entry > 0.0 && bytes.flag() ? entry : 1e-6 + 1.1 * bytes.unit());
  }
  if (!map.finite()) return;
  static BettiWorkspace reused;
  BettiWorkspace fresh;
  Output<std::int64_t> out(2 * count);
  Output<std::int64_t> again(2 * count);
  betti_numbers(map.view(), rule, thresholds.data(), count, out.data(), fresh);
  betti_numbers(map.view(), rule, thresholds.data(), count, again.data(), reused);
  LAW(out.same_bits(again), "scratch changes the numbers");
  PersistenceOptions options;
  options.symmetrize = rule;
  PersistenceWorkspace workspace;
  std::vector<Bar> bars;
  persistence(map.view(), options, workspace, bars);
  for (Index t = 0; t < count; ++t) {
    LAW(out[2 * t] >= 1 && out[2 * t] <= n && out[2 * t + 1] >= 0, "%ld pieces, %ld loops",
        long(out[2 * t]), long(out[2 * t + 1]));
    if (thresholds[t] >= 1.0) {
      LAW(out[2 * t] == n && out[2 * t + 1] == 0, "the empty graph has %ld pieces",
          long(out[2 * t]));
      continue;
    }
    // 1 − w merges weights that differ by less than a rounding of 1; such a graph is not counted.
    bool sharp = true;
    for (const Bar& bar : bars) {
      for (const double end : {bar.birth, bar.death}) {
        sharp = sharp && (std::abs(end - (1.0 - thresholds[t])) > 1e-15 || end == 0.0);
      }
    }
    if (!sharp) continue;
    Index expected[2] = {0, 0};
    for (const Bar& bar : bars) {
      if (bar.birth <= 1.0 - thresholds[t] && 1.0 - thresholds[t] < bar.death)
        ++expected[bar.dimension];
    }
    LAW(out[2 * t] == expected[0] && out[2 * t + 1] == expected[1],
        "%ld, %ld, bars say %ld, %ld at %.17g, n = %ld", long(out[2 * t]), long(out[2 * t + 1]),
        long(expected[0]), long(expected[1]), thresholds[t], long(n));
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::betti)
