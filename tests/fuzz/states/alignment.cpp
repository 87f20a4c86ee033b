// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include "inputs.h"
#include "matrix/widen.h"

namespace attnscope::fuzz {

template <class Scalar>
void alignment(Bytes& bytes) {
  const Index heads = bytes.between(1, 3);
  const Index n = read_size(bytes, 24, 100);
  const Index width = bytes.between(1, 9);
  const Layer<Scalar> layer(bytes, n, heads);
  const States<Scalar> states(bytes, n, width);
  const Marked without(bytes, n);
  Output<double> unit(n * width);
  const bool finite = widen_states(states.memory.get(), states.row_stride, states.column_stride,
                                   width, Index{0}, n, true, unit.data());
  LAW(finite == states.finite, "widen_states says %d", finite);
  if (!finite || !layer.finite) return;
  for (Index i = 0; i < n; ++i) {
    double square = 0.0;
    for (Index k = 0; k < width; ++k) square += unit[i * width + k] * unit[i * width + k];
    LAW(square == 0.0 || near(square, 1.0, 1e-14), "a unit state has the square %.17g", square);
  }

  std::vector<AlignedHead<Scalar>> aligned;
  for (Index h = 0; h < heads; ++h) {
    aligned.push_back({layer.views[h], layer.supports[h], without.data(), without.stride()});
  }
  static AlignmentWorkspace reused;
  AlignmentWorkspace fresh;
  const Index rows = std::min(state_rows(n), bytes.between(1, n));
  std::vector<std::vector<PairMoments>> parts(static_cast<std::size_t>(heads));
  for (Index begin = 0; begin < n; begin += rows) {
    const Index end = std::min(n, begin + rows);
    std::vector<PairMoments> found(static_cast<std::size_t>(heads));
    alignment_moments(std::span<const AlignedHead<Scalar>>(aligned), unit.data(), unit.data(),
                      width, begin, end, found.data(), fresh);
    for (Index h = 0; h < heads; ++h) {
      // A head alone, in scratch that other matrices have used.
      PairMoments alone;
      alignment_moments(std::span<const AlignedHead<Scalar>>(&aligned[h], 1), unit.data(),
                        unit.data(), width, begin, end, &alone, reused);
      const PairMoments& together = found[h];
      LAW(alone.count == together.count && same_bits(alone.ac, together.ac) &&
              same_bits(alone.aa, together.aa) && same_bits(alone.cc, together.cc),
          "head %ld beside others: %g, alone %g", long(h), together.ac, alone.ac);
      parts[h].push_back(together);
    }
  }
  for (Index h = 0; h < heads; ++h) {
    const double r = alignment_of(parts[h]);
    if (!layer.maps[h]->tame()) continue;
    LAW(!(std::abs(r) > 1.0), "a correlation of %.17g", r);
    double pairs = 0.0;
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < n; ++j) {
        if (i == j || !layer.seen[h](i, j)) continue;
        if (without.data() != nullptr && without.data()[j * without.stride()]) continue;
        double own = 0.0;
        double other = 0.0;
        for (Index k = 0; k < width; ++k) {
          own += std::abs(unit[i * width + k]);
          other += std::abs(unit[j * width + k]);
        }
        if (own > 0.0 && other > 0.0) pairs += 1.0;
      }
    }
    double counted = 0.0;
    for (const PairMoments& part : parts[h]) counted += part.count;
    LAW(counted == pairs, "%g pairs, expected %g", counted, pairs);
    if (pairs < 2.0) LAW(std::isnan(r), "%g pairs correlate by %g", pairs, r);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::alignment)
