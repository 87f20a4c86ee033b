// SPDX-License-Identifier: MIT
#include "kernels/answers/prompt_divergence.h"

#include "reader.h"

namespace attnscope::fuzz {

// A tree is no longer than its star, and the total is that of the tokens.
template <class Scalar>
void prompt_divergence(Bytes& bytes) {
  const Index n = read_size(bytes, 24, 140);
  const Map<Scalar> map(bytes, n);
  const Index start = bytes.between(0, n - 1);
  const Index stop = bytes.between(start + 1, n);
  PromptWorkspace workspace;
  PromptDivergence found{};
  const bool good =
      attnscope::prompt_divergence(map.view(), 0, true, Support{}, start, stop, found, workspace);
  bool finite = true;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) finite = finite && std::isfinite(map(i, j));
  }
  LAW(good == finite, "a map of %ld says %d", long(n), good);
  if (!good) return;
  LAW(std::isnan(found.total) == (start == 0), "total %g from %ld", found.total, long(start));
  if (start == 0 || !map.tame()) return;
  double star = 0.0;
  double size = 1.0;
  for (Index i = start; i < stop; ++i) {
    double most = -std::numeric_limits<double>::infinity();
    for (Index j = 0; j < start; ++j) most = std::max({most, map(i, j), map(j, i)});
    star += 1.0 - std::min(most, 1.0);
    size += std::abs(most);
  }
  const auto r = static_cast<double>(stop - start);
  const double tolerance = 1e-12 * (size + r);
  LAW(near(found.star, star / r, tolerance), "star %.17g, expected %.17g", found.star, star / r);
  LAW(found.per_token <= found.star + tolerance, "tree %.17g, star %.17g", found.per_token,
      found.star);
  LAW(near(found.total, found.per_token * r, tolerance), "total %.17g of %.17g", found.total,
      found.per_token);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::prompt_divergence)
