// SPDX-License-Identifier: MIT
#include "kernels/information/sinks.h"

#include "reader.h"

namespace attnscope::fuzz {

template <class Scalar>
void sinks(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 150);
  const Map<Scalar> map(bytes, n);
  const Seen seen(bytes, map);
  const Index k = bytes.between(1, n);
  const Index asked = bytes.between(1, n);
  SinkRule rule;
  rule.gamma = bytes.byte() / 256.0;
  rule.min_visibility = bytes.byte() / 256.0;
  if (bytes.flag()) rule.tau = bytes.flag() ? bytes.unit() : special_value(bytes);
  static SinkWorkspace reused;
  SinkWorkspace fresh;

  SinkRequest questions;
  questions.position = true;
  questions.min_visibility = rule.min_visibility;
  questions.first = k;
  questions.queries = asked;
  questions.top = k;
  Output<double> alpha(n);
  Output<double> again(n);
  Support support = seen.support();
  SinkAnswers answers;
  answers.incoming = alpha.data();
  const bool finite = sink_statistics(map.view(), false, support, questions, answers, fresh);
  LAW(finite == map.finite(), "finite is %d, the map's entries say %d", finite, map.finite());
  if (!finite) return;
  SinkAnswers answers_again;
  answers_again.incoming = again.data();
  sink_statistics(map.view(), false, support, questions, answers_again, reused);
  LAW(alpha.same_bits(again) && answers.position == answers_again.position &&
          same_bits(answers.top_mass, answers_again.top_mass),
      "scratch changes the sinks");
  std::vector<Index> watchers(static_cast<std::size_t>(n), 0);
  for (Index j = 0; j < n; ++j) {
    long double sum = 0.0;
    long double size = 0.0;
    for (Index i = 0; i < n; ++i) {
      if (!seen(i, j)) continue;
      ++watchers[j];
      sum += map(i, j);
      size += std::abs(map(i, j));
    }
    if (size > 1e300) continue;
    const double expected = double(sum / static_cast<long double>(watchers[j]));
    LAW(near(alpha[j], watchers[j] == 0 ? std::nan("") : expected, 1e-13 * double(size) + 1e-320),
        "key %ld of %ld: %.17g, expected %.17g", long(j), long(n), alpha[j], expected);
  }

  const Index sink = answers.position;
  const double wanted = std::ceil(rule.min_visibility * double(n));
  Index best = -1;
  for (Index j = 0; j < n; ++j) {
    if (double(watchers[j]) < wanted || watchers[j] == 0) continue;
    if (best < 0 || alpha[j] > alpha[best]) best = j;
  }
  LAW(sink == best, "sink %ld, expected %ld of %ld", long(sink), long(best), long(n));

  Output<bool> tokens(n);
  Output<bool> tokens_again(n);
  sink_tokens(map.view(), seen.support(), rule, tokens.data(), fresh);
  sink_tokens(map.view(), seen.support(), rule, tokens_again.data(), reused);
  LAW(tokens.same_bits(tokens_again), "scratch changes the sinks");
  for (Index j = 0; j < n; ++j) {
    if (tokens[j]) LAW(double(watchers[j]) >= wanted, "key %ld is seen too rarely", long(j));
    if (!rule.tau || watchers[j] == 0 || double(watchers[j]) < wanted) continue;
    Index reached = 0;
    for (Index i = 0; i < n; ++i) reached += seen(i, j) && map(i, j) >= *rule.tau ? 1 : 0;
    const double over = double(reached) - rule.gamma * double(watchers[j]);
    LAW(tokens[j] == (over >= 0.0), "key %ld: %ld of %ld queries, gamma %g", long(j), long(reached),
        long(watchers[j]), rule.gamma);
  }

  Output<double> far(5 * n);
  Output<double> far_again(5 * n);
  std::vector<std::int64_t> queries(static_cast<std::size_t>(n));
  const auto far_of = [&](Output<double>& to, SinkWorkspace& workspace) {
    double* at = to.data();
    far_attention(map.view(), seen.support(),
                  FarAttention{at, at + n, at + 2 * n, at + 3 * n, at + 4 * n, queries.data()},
                  workspace);
  };
  far_of(far, fresh);
  far_of(far_again, reused);
  LAW(far.same_bits(far_again), "scratch changes what far queries give");
  for (Index j = 0; j < n; ++j) {
    std::int64_t count = 0;
    for (Index i = 0; i < n; ++i) count += seen(i, j) && std::abs(i - j) >= far_distance(n) ? 1 : 0;
    LAW(queries[std::size_t(j)] == count, "key %ld has %ld far queries", long(j), long(count));
    if (!map.attention()) continue;
    LAW(!(far[2 * n + j] < 0.0), "variance %g", far[2 * n + j]);
    LAW(!(far[j] > far[3 * n + j] * double(count) * (1 + 1e-12)), "mass %g", far[j]);
  }

  const SinkShare share = answers.share;
  const double mass = answers.top_mass;
  if (!std::isnan(share.uniform)) {
    LAW(share.uniform >= 0.0 && share.uniform <= 1.0, "uniform share %g", share.uniform);
  }
  if (map.attention()) {
    LAW(std::isnan(share.share) == std::isnan(share.uniform), "share %g", share.share);
    LAW(!(share.share < 0.0) && !(share.share > 1.03), "share %g", share.share);
    LAW(!(mass < 0.0) && !(mass > 1.0 + 1e-12), "top mass %g of %ld keys", mass, long(k));
    if (k == n && map.tame() && !std::isnan(mass))
      LAW(near(mass, 1.0, 1e-12), "all keys hold %g", mass);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::sinks)
