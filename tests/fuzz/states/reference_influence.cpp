// SPDX-License-Identifier: MIT
#include "kernels/states/reference_influence.h"

#include "inputs.h"
#include "matrix/widen.h"

namespace attnscope::fuzz {

template <class Scalar>
void reference_influence_target(Bytes& bytes) {
  const Index n = read_size(bytes, 24, 100);
  const Index width = bytes.between(1, 9);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  const States<Scalar> states(bytes, n, width);
  const Marked reference(bytes, n);
  Output<double> wide(n * width);
  const bool finite = widen_states(states.memory.get(), states.row_stride, states.column_stride,
                                   width, Index{0}, n, false, wide.data());
  LAW(finite == states.finite, "widen_states says %d", finite);
  if (!finite || !map.finite()) return;
  Output<double> numbers(size_of_panels<double>(n, width));
  put_in_panels(wide.data(), Index{0}, n, n, width, numbers.data());
  const StatePanels<double> panels{numbers.data(), n, width};
  static InfluenceWorkspace reused;
  InfluenceWorkspace fresh;
  Output<double> magnitude(n), direction(n), change(n);
  Output<double> magnitude_again(n), direction_again(n), change_again(n);
  const Index rows = state_rows(n);
  for (Index begin = 0; begin < n; begin += rows) {
    const Index end = std::min(n, begin + rows);
    reference_influence(map.view(), seen.support(), panels, reference.all(), reference.stride(),
                        begin, end, Influence{magnitude.data(), direction.data(), change.data()},
                        fresh);
    reference_influence(
        map.view(), seen.support(), panels, reference.all(), reference.stride(), begin, end,
        Influence{magnitude_again.data(), direction_again.data(), change_again.data()}, reused);
  }
  LAW(magnitude.same_bits(magnitude_again) && direction.same_bits(direction_again) &&
          change.same_bits(change_again),
      "scratch changes the influence, n = %ld", long(n));
  for (Index i = 0; i < n; ++i) {
    const bool own = reference.all()[i * reference.stride()];
    LAW(magnitude.written(i) == !own, "query %ld of %ld is written against the rule", long(i),
        long(n));
    if (own || !map.tame()) continue;
    LAW(!(magnitude[i] < 0.0), "a magnitude of %g", magnitude[i]);
    LAW(!(std::abs(direction[i]) > 1.0 + 1e-12), "a cosine of %.17g", direction[i]);
    LAW(!(change[i] < -1e-12) && !(change[i] > 2.0 + 1e-12), "a change of %.17g", change[i]);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::reference_influence_target)
