// SPDX-License-Identifier: MIT
#include "kernels/sinks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "kernels/base/rows.h"

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Column sums over the visible entries to workspace.mass, N_j to workspace.queries.
template <class Scalar>
void incoming_mass(const MatrixView<Scalar>& attention, const Support& support,
                   SinkWorkspace& workspace) {
  const Index n = attention.rows();
  workspace.mass.assign(static_cast<std::size_t>(n), 0.0);
  workspace.queries.resize(static_cast<std::size_t>(n));
  visible_queries(support, n, workspace.queries.data());
  double* mass = workspace.mass.data();
  for_each_row(attention, support, workspace.rows, [&](Index, const Wide<Scalar>* row, Index end) {
    Index j = 0;
    for (; j + kPackWidth <= end; j += kPackWidth) store(mass + j, load(mass + j) + load(row + j));
    for (; j < end; ++j) mass[j] += static_cast<double>(row[j]);
  });
}

// ⌈share·n⌉, where the product's own rounding does not lift it over a whole number.
Index required_queries(double share, Index n) {
  return static_cast<Index>(std::ceil(share * static_cast<double>(n) - 1e-9));
}

}  // namespace

template <class Scalar>
void incoming_attention(const MatrixView<Scalar>& attention, const Support& support, double* out,
                        SinkWorkspace& workspace) {
  incoming_mass(attention, support, workspace);
  for (std::size_t j = 0; j < workspace.mass.size(); ++j) {
    const Index queries = workspace.queries[j];
    out[j] = queries == 0 ? kNaN : workspace.mass[j] / static_cast<double>(queries);
  }
}

template <class Scalar>
void sink_tokens(const MatrixView<Scalar>& attention, const Support& support, const SinkRule& rule,
                 bool* out, SinkWorkspace& workspace) {
  const Index n = attention.rows();
  const double tau =
      rule.tau ? *rule.tau : visible_quantile(attention, support, 0.9, workspace.quantile);
  workspace.queries.resize(static_cast<std::size_t>(n));
  visible_queries(support, n, workspace.queries.data());
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
Index sink_position(const MatrixView<Scalar>& attention, const Support& support,
                    double min_visibility, SinkWorkspace& workspace) {
  const Index n = attention.rows();
  incoming_mass(attention, support, workspace);
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

template <class Scalar>
double top_mass(const MatrixView<Scalar>& attention, const Support& support, Index k,
                SinkWorkspace& workspace) {
  incoming_mass(attention, support, workspace);
  std::vector<double>& mass = workspace.mass;
  double total = 0.0;
  for (const double m : mass) total += m;
  if (total == 0.0) return kNaN;
  const Index taken = std::min(k, attention.rows());
  std::partial_sort(mass.begin(), mass.begin() + taken, mass.end(), std::greater<>());
  double top = 0.0;
  for (Index j = 0; j < taken; ++j) top += mass[static_cast<std::size_t>(j)];
  return top / total;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                             \
  template void incoming_attention<Scalar>(const MatrixView<Scalar>&, const Support&, double*,    \
                                           SinkWorkspace&);                                       \
  template void sink_tokens<Scalar>(const MatrixView<Scalar>&, const Support&, const SinkRule&,   \
                                    bool*, SinkWorkspace&);                                       \
  template Index sink_position<Scalar>(const MatrixView<Scalar>&, const Support&, double,         \
                                       SinkWorkspace&);                                           \
  template SinkShare sink_share<Scalar>(const MatrixView<Scalar>&, const Support&, Index, Index); \
  template double top_mass<Scalar>(const MatrixView<Scalar>&, const Support&, Index,              \
                                   SinkWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
