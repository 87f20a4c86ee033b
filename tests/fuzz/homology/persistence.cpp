// SPDX-License-Identifier: MIT
#include "kernels/homology/persistence.h"

#include "inputs.h"
#include "oracles.h"

namespace attnscope::fuzz {

inline bool same(const Bar& a, const Bar& b) {
  return same_bits(a.birth, b.birth) && same_bits(a.death, b.death) && a.dimension == b.dimension &&
         a.birth_edge[0] == b.birth_edge[0] && a.birth_edge[1] == b.birth_edge[1] &&
         a.death_edge[0] == b.death_edge[0] && a.death_edge[1] == b.death_edge[1];
}

// Distances of points: every bar begins and ends at one of them, and H0 alone is H0 with loops.
template <class Scalar>
void bars_of_points(Bytes& bytes) {
  const Distances<Scalar> distances(bytes, read_size(bytes, 28, 140));
  PersistenceOptions options{.metric = Metric::distance};
  static PersistenceWorkspace reused;
  std::vector<Bar> both;
  std::vector<Bar> alone;
  persistence(distances.view(), options, reused, both);
  options.max_dimension = 0;
  persistence(distances.view(), options, reused, alone);
  LAW(alone.size() <= both.size() && std::equal(alone.begin(), alone.end(), both.begin(), same),
      "H0 alone: %zu bars of %zu", alone.size(), both.size());
  for (const Bar& bar : both) {
    LAW(bar.birth < bar.death, "a bar from %.17g to %.17g", bar.birth, bar.death);
    LAW(bar.dimension == 0 ? bar.birth == 0.0
                           : bar.birth == distances(bar.birth_edge[0], bar.birth_edge[1]),
        "born at %.17g", bar.birth);
    if (std::isinf(bar.death)) continue;
    LAW(bar.death == distances(bar.death_edge[0], bar.death_edge[1]), "dies at %.17g", bar.death);
  }
}

template <class Scalar>
void bars(Bytes& bytes) {
  const Index n = read_size(bytes, 28, 140);
  const Map<Scalar> map(bytes, n);
  PersistenceOptions options;
  const Symmetrize rules[] = {Symmetrize::max, Symmetrize::mean, Symmetrize::min};
  options.symmetrize = rules[bytes.byte() % 3];
  options.metric = bytes.byte() % 4 == 0 ? Metric::hellinger : Metric::attention;
  options.max_dimension = bytes.byte() % 4 == 0 ? 0 : 1;
  if (!map.finite()) return;
  static PersistenceWorkspace reused;
  PersistenceWorkspace fresh;
  std::vector<Bar> found;
  std::vector<Bar> again;
  persistence(map.view(), options, fresh, found);
  persistence(map.view(), options, reused, again);
  LAW(found.size() == again.size() && std::equal(found.begin(), found.end(), again.begin(), same),
      "scratch changes the bars: %zu, %zu", found.size(), again.size());

  const bool plain = options.metric == Metric::attention;
  const Eigen::MatrixXd weights = filtration_weights(map, options.symmetrize);
  std::vector<Interval> loops;
  Index endless = 0;
  Index pieces = 0;
  for (const Bar& bar : found) {
    LAW(bar.birth < bar.death, "a bar from %.17g to %.17g", bar.birth, bar.death);
    LAW(bar.dimension == 0 || bar.dimension == 1, "dimension %d", bar.dimension);
    const bool infinite = std::isinf(bar.death);
    endless += infinite ? 1 : 0;
    LAW(!infinite || bar.dimension == 0, "an endless loop");
    if (bar.dimension == 0) {
      ++pieces;
      LAW(bar.birth == 0.0 && bar.birth_edge[0] == -1, "a piece is born at %g", bar.birth);
    } else {
      loops.emplace_back(bar.birth, bar.death);
      LAW(bar.birth_edge[0] > bar.birth_edge[1] && bar.birth_edge[0] < n, "a birth edge");
      if (plain) {
        LAW(bar.birth == 1.0 - weights(bar.birth_edge[0], bar.birth_edge[1]), "born at %.17g",
            bar.birth);
      }
    }
    if (!infinite) {
      LAW(bar.death_edge[0] > bar.death_edge[1] && bar.death_edge[1] >= 0 && bar.death_edge[0] < n,
          "a death edge");
      if (plain)
        LAW(bar.death == 1.0 - weights(bar.death_edge[0], bar.death_edge[1]), "dies at %.17g",
            bar.death);
    }
  }
  LAW(endless == 1, "%ld endless bars", long(endless));
  LAW(pieces <= n, "%ld pieces of %ld vertices", long(pieces), long(n));
  LAW(std::is_sorted(found.begin(), found.end(),
                     [](const Bar& a, const Bar& b) {
                       return std::tie(a.dimension, a.birth, a.death) <
                              std::tie(b.dimension, b.birth, b.death);
                     }),
      "bars out of order");
  if (plain && options.max_dimension == 1 && n <= 20) {
    const std::vector<Interval> expected = loops_by_hand(weights);
    LAW(loops == expected, "%zu loops, expected %zu, n = %ld", loops.size(), expected.size(),
        long(n));
  }
  if (bytes.byte() % 4 == 0) bars_of_points<Scalar>(bytes);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::bars)
