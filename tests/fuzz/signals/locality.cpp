// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include "reader.h"

namespace attnscope::fuzz {

template <class Scalar>
void locality(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 150);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  const Index window = bytes.between(0, n + 2);
  const bool drop_first = bytes.flag();
  if (!map.finite()) return;
  static RowScratch reused;
  RowScratch fresh;
  const auto ratio_with = [&](RowScratch& scratch) {
    Support support = seen.support();
    double result = 0.0;
    LAW(local_global_ratio(map.view(), false, support, window, drop_first, result, scratch),
        "a map of finite entries is called not finite");
    return result;
  };
  const double ratio = ratio_with(fresh);
  LAW(same_bits(ratio, ratio_with(reused)), "scratch changes the ratio");
  if (!map.tame() || map.negative()) return;
  double near_mass = 0.0;
  double far_mass = 0.0;
  for (Index i = 0; i < n; ++i) {
    for (Index j = drop_first ? 1 : 0; j < n; ++j) {
      if (seen(i, j)) (std::abs(i - j) <= window ? near_mass : far_mass) += map(i, j);
    }
  }
  const double expected = near_mass / far_mass;
  LAW(near(ratio, expected, 1e-12 * expected), "%.17g, expected %.17g", ratio, expected);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::locality)
