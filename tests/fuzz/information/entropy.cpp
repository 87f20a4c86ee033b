// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include "reader.h"

namespace attnscope::fuzz {

template <class Scalar>
void entropy(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 150);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  const bool normalized = bytes.flag();
  const bool find_support = bytes.flag();
  static RowScratch reused;
  RowScratch fresh;
  Output<double> out(n);
  Output<double> again(n);
  Support support = seen.support();
  const bool finite =
      attention_entropy(map.view(), find_support, support, normalized, out.data(), fresh);
  LAW(finite == map.finite(), "finite is %d, the map's entries say %d", finite, map.finite());
  if (!finite) {
    for (Index i = 0; i < n; ++i)
      LAW(std::isnan(out[i]), "a non-finite map has the entropy %g", out[i]);
    return;
  }
  if (find_support)
    LAW((support.kind == Support::Kind::causal) == map.lower(), "judged %d", int(support.kind));
  Support support_again = seen.support();
  attention_entropy(map.view(), find_support, support_again, normalized, again.data(), reused);
  LAW(out.same_bits(again), "scratch of an earlier matrix changes the entropy, n = %ld", long(n));
  for (Index i = 0; i < n; ++i) {
    long double sum = 0.0;
    long double size = 0.0;
    bool negative = false;
    for (Index j = 0; j < n; ++j) {
      if (!support.visible(i, j)) continue;
      const double a = map(i, j);
      negative = negative || a < 0.0;
      if (a <= 0.0) continue;
      const long double term = -static_cast<long double>(a) * std::log(static_cast<long double>(a));
      sum += term;
      size += std::abs(term) + a;
    }
    Index keys = 0;
    for (Index j = 0; j < n; ++j) keys += support.visible(i, j) ? 1 : 0;
    if (negative || (normalized && keys < 2)) {
      LAW(std::isnan(out[i]), "row %ld of %ld gives %g, not NaN", long(i), long(n), out[i]);
      continue;
    }
    const long double scale = normalized ? std::log(static_cast<long double>(keys)) : 1.0;
    if (size > 1e300) continue;
    // A subnormal entry takes the logarithm of 2^-1022, which is off by at most 2^-1022/e in x·log
    // x.
    const double small = 1.5e-308 * double(n);
    LAW(near(out[i], double(sum / scale), 4e-15 * double(size / scale) + small),
        "row %ld of %ld: %.17g, expected %.17g", long(i), long(n), out[i], double(sum / scale));
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::entropy)
