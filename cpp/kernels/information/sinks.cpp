// SPDX-License-Identifier: MIT
#include "kernels/information/sinks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "matrix/row_statistics.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// N_j to workspace.queries.
void count_queries(const Support& support, Index n, SinkWorkspace& workspace) {
  workspace.queries.resize(static_cast<std::size_t>(n));
  visible_queries(support, n, workspace.queries.data());
}

// ⌈share·n⌉, where the product's own rounding does not lift it over a whole number.
Index required_queries(double share, Index n) {
  return static_cast<Index>(std::ceil(share * static_cast<double>(n) - 1e-9));
}

// The key of largest mass per query among those that enough queries see, the first on ties, or −1.
Index position_of(double min_visibility, const SinkWorkspace& workspace) {
  const auto n = static_cast<Index>(workspace.mass.size());
  const Index required = std::max<Index>(1, required_queries(min_visibility, n));
  Index best = -1;
  double largest = 0.0;
  for (Index j = 0; j < n; ++j) {
    const Index queries = workspace.queries[static_cast<std::size_t>(j)];
    if (queries < required) continue;
    const double mean = workspace.mass[static_cast<std::size_t>(j)] / static_cast<double>(queries);
    if (best < 0 || mean > largest) {
      best = j;
      largest = mean;
    }
  }
  return best;
}

// The share of workspace.mass that its k largest entries hold; reorders it.
double top_mass_of(Index k, std::vector<double>& mass) {
  double total = 0.0;
  for (const double m : mass) total += m;
  if (total == 0.0) return kNaN;
  const Index taken = std::min(k, static_cast<Index>(mass.size()));
  if (taken == 1) return *std::max_element(mass.begin(), mass.end()) / total;
  std::partial_sort(mass.begin(), mass.begin() + taken, mass.end(), std::greater<>());
  double top = 0.0;
  for (Index j = 0; j < taken; ++j) top += mass[static_cast<std::size_t>(j)];
  return top / total;
}

}  // namespace

template <class Scalar>
bool sink_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                     const SinkRequest& asked, SinkAnswers& answers, SinkWorkspace& workspace) {
  const Index n = attention.rows();
  workspace.mass.resize(static_cast<std::size_t>(n));
  if (!row_statistics(attention, find_support, support, workspace.mass.data(), answers.entropy,
                      workspace.rows)) {
    if (answers.entropy != nullptr) std::fill(answers.entropy, answers.entropy + n, kNaN);
    return false;
  }
  if (answers.incoming != nullptr || asked.position) count_queries(support, n, workspace);
  if (answers.incoming != nullptr) {
    for (std::size_t j = 0; j < workspace.mass.size(); ++j) {
      const Index queries = workspace.queries[j];
      answers.incoming[j] =
          queries == 0 ? kNaN : workspace.mass[j] / static_cast<double>(queries);
    }
  }
  if (asked.position) answers.position = position_of(asked.min_visibility, workspace);
  if (asked.first > 0) answers.share = sink_share(attention, support, asked.first, asked.queries);
  if (asked.top > 0) answers.top_mass = top_mass_of(asked.top, workspace.mass);
  return true;
}

template <class Scalar>
void sink_tokens(const MatrixView<Scalar>& attention, const Support& support, const SinkRule& rule,
                 bool* out, SinkWorkspace& workspace) {
  const Index n = attention.rows();
  const double tau =
      rule.tau ? *rule.tau : visible_quantile(attention, support, 0.9, workspace.quantile);
  count_queries(support, n, workspace);
  workspace.counts.assign(static_cast<std::size_t>(n), 0);
  Index* counts = workspace.counts.data();
  const auto limit = rounded_up<Wide<Scalar>>(tau);
  // Invisible entries of a mask come as 0, and a percentile can be 0.
  const bool zeros_pass = support.kind == Support::Kind::mask && limit <= 0;
  for_each_row(attention, support, workspace.rows,
               [&](Index i, const Wide<Scalar>* row, Index end) {
                 for (Index j = 0; j < end; ++j) counts[j] += row[j] >= limit ? 1 : 0;
                 if (!zeros_pass) return;
                 for (Index j = 0; j < end; ++j) counts[j] -= support.visible(i, j) ? 0 : 1;
               });
  const Index required = required_queries(rule.min_visibility, n);
  for (Index j = 0; j < n; ++j) {
    const Index queries = workspace.queries[static_cast<std::size_t>(j)];
    out[j] = queries > 0 && queries >= required &&
             static_cast<double>(counts[j]) / static_cast<double>(queries) >= rule.gamma;
  }
}

template <class Scalar>
SinkShare sink_share(const MatrixView<Scalar>& attention, const Support& support, Index first,
                     Index queries) {
  const Index n = attention.rows();
  const Index keys = std::min(first, n);
  double share = 0.0;
  double uniform = 0.0;
  Index counted = 0;
  for (Index i = std::max<Index>(0, n - queries); i < n; ++i) {
    const Index visible = visible_keys(support, i, n);
    if (visible == 0) continue;
    ++counted;
    Index seen = 0;
    for (Index j = 0; j < keys; ++j) {
      if (!support.visible(i, j)) continue;
      ++seen;
      share += static_cast<double>(attention(i, j));
    }
    uniform += static_cast<double>(seen) / static_cast<double>(visible);
  }
  const double scale = counted == 0 ? kNaN : 1.0 / static_cast<double>(counted);
  return {share * scale, uniform * scale};
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                             \
  template bool sink_statistics<Scalar>(const MatrixView<Scalar>&, bool, Support&,                \
                                        const SinkRequest&, SinkAnswers&, SinkWorkspace&);      \
  template void sink_tokens<Scalar>(const MatrixView<Scalar>&, const Support&, const SinkRule&,   \
                                    bool*, SinkWorkspace&);                                       \
  template SinkShare sink_share<Scalar>(const MatrixView<Scalar>&, const Support&, Index, Index);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
