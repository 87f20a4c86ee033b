// SPDX-License-Identifier: MIT
#include "kernels/information/pattern_share.h"

#include "reader.h"

namespace attnscope::fuzz {

// Shares of tame maps are those of a loop, and each pattern has the numbers that it has alone.
template <class Scalar>
void pattern_share(Bytes& bytes) {
  const Index n = read_size(bytes, 24, 140);
  const Map<Scalar> map(bytes, n);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(n));
  for (std::int64_t& token : tokens) token = bytes.byte() % 5;
  const Pattern patterns[] = {Pattern::first, Pattern::self,      Pattern::previous,
                              Pattern::next,  Pattern::duplicate, Pattern::induction};
  const bool all = bytes.flag();
  Support support;
  PatternWorkspace workspace;
  PatternShare found[6];
  const bool good = attnscope::pattern_share(
      map.view(), true, support, {patterns, 6, tokens.data(), Support{}, all}, found, workspace);
  bool finite = true;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) finite = finite && std::isfinite(map(i, j));
  }
  LAW(good == finite, "a map of %ld says %d", long(n), good);
  if (!good) return;
  for (Index at = 0; at < 6; ++at) {
    PatternShare alone;
    attnscope::pattern_share(map.view(), true, support,
                             {patterns + at, 1, tokens.data(), Support{}, all}, &alone, workspace);
    LAW(alone.queries == found[at].queries, "pattern %ld has %ld queries alone", long(at),
        long(alone.queries));
    LAW(std::isnan(alone.share) == std::isnan(found[at].share) &&
            (std::isnan(alone.share) || alone.share == found[at].share),
        "pattern %ld has %.17g alone, %.17g beside others", long(at), alone.share, found[at].share);
  }
  if (!map.tame() || all) return;
  long double total = 0.0;
  double size = 0.0;
  std::int64_t queries = 0;
  for (Index i = 0; i < n; ++i) {
    const Index end = support.end(i, n);
    bool any = false;
    for (Index j = 1; j < end; ++j) {
      if (j == i || j - 1 == i) continue;
      if (tokens[static_cast<std::size_t>(j - 1)] != tokens[static_cast<std::size_t>(i)]) continue;
      any = true;
      total += map(i, j);
      size += std::abs(map(i, j));
    }
    queries += any ? 1 : 0;
  }
  LAW(queries == found[5].queries, "%ld queries, expected %ld", long(found[5].queries),
      long(queries));
  if (queries == 0) return;
  LAW(near(found[5].share, double(total) / double(queries), 1e-13 * size), "share %.17g",
      found[5].share);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::pattern_share)
