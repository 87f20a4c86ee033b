// SPDX-License-Identifier: MIT
#include "kernels/information/sinks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "matrix/columns/column_sums.h"
#include "matrix/row_groups/fast_row_statistics.h"
#include "matrix/row_statistics.h"
#include "matrix/rows.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

// ⌈share·n⌉, where the product's own rounding does not lift it over a whole number.
Index required_queries(double share, Index n) {
  return static_cast<Index>(std::ceil(share * static_cast<double>(n) - 1e-9));
}

// The key of largest mass per query among those that enough queries see, the first on ties, or −1;
// and whether another one comes within `error` of it, as a share.
std::pair<Index, bool> position_of(double min_visibility, Index queries_of_map, double error,
                                   const SinkWorkspace& workspace) {
  const std::vector<double>& mass = workspace.rows.sums;
  const auto n = static_cast<Index>(mass.size());
  const Index required = std::max<Index>(1, required_queries(min_visibility, queries_of_map));
  Index best = -1;
  double largest = 0.0;
  double second = -std::numeric_limits<double>::infinity();
  for (Index j = 0; j < n; ++j) {
    const Index queries = workspace.queries[j];
    if (queries < required) continue;
    const double mean = mass[j] / static_cast<double>(queries);
    if (best < 0 || mean > largest) {
      if (best >= 0) second = largest;
      best = j;
      largest = mean;
    } else {
      second = std::max(second, mean);
    }
  }
  return {best, second >= largest * (1.0 - error)};
}

// The larger of the lanes, by halves.
double largest_of(Lanes x) { return largest_lane(reinterpret_cast<DoubleVector>(x)); }

// The sum of `mass` and its largest entry.
std::pair<double, double> sum_and_largest(const std::vector<double>& mass) {
  const auto n = static_cast<Index>(mass.size());
  Lanes sums[2] = {};
  Lanes most = broadcast(-std::numeric_limits<double>::infinity());
  Index j = 0;
  for (; j + 2 * kPackWidth <= n; j += 2 * kPackWidth) {
    const Lanes x = load(mass.data() + j), y = load(mass.data() + j + kPackWidth);
    sums[0] += x;
    sums[1] += y;
    most = larger(most, larger(x, y));
  }
  double sum = sum_by_halves(sums[0] + sums[1]);
  double largest = largest_of(most);
  for (; j < n; ++j) {
    sum += mass[j];
    largest = std::max(largest, mass[j]);
  }
  return {sum, largest};
}

// The share of `mass` that its k largest entries hold; reorders it.
double top_mass_of(Index k, std::vector<double>& mass) {
  const auto [total, largest] = sum_and_largest(mass);
  if (total == 0.0) return kNaN;
  const Index count = std::min(k, static_cast<Index>(mass.size()));
  if (count == 1) return largest / total;
  std::partial_sort(mass.begin(), mass.begin() + count, mass.end(), std::greater<>());
  return std::accumulate(mass.begin(), mass.begin() + count, 0.0) / total;
}

// Number, sum, sum of squared distances from their mean, and largest of the far visible entries of
// a row.
struct FarRow {
  double count = 0.0;
  double sum = 0.0;
  double squares = 0.0;
  double largest = 0.0;
};

// Of the entries in [0, left) and [right, end), all of them visible, which are added to `mass`, of
// which whole vectors are touched.
template <class WideType>
FarRow far_row(const WideType* row, Index left, Index right, Index end, Index n, double* mass) {
  FarRow of_row;
  of_row.count = static_cast<double>(left + std::max<Index>(0, end - right));
  if (of_row.count == 0.0) return of_row;
  Lanes total{};
  Lanes most = broadcast(-std::numeric_limits<double>::infinity());
  const auto add = [&](Index begin, Index stop) {
    Index j = begin;
    for (; j + kPackWidth <= stop; j += kPackWidth) {
      const Lanes x = load(row + j);
      total += x;
      most = larger(most, x);
      store(mass + j, load(mass + j) + x);
    }
    if (j >= stop) return;
    const Lanes x = load_head(row + j, stop - j, n - j);
    total += x;
    most = larger(most, first_lanes(stop - j) ? x : most);
    store(mass + j, load(mass + j) + x);
  };
  add(0, left);
  add(right, end);
  of_row.sum = sum_of_lanes(total);
  of_row.largest = largest_of(most);
  const Lanes mean = broadcast(of_row.sum / of_row.count);
  Lanes squares{};
  const auto add_squares = [&](Index begin, Index stop) {
    Index j = begin;
    for (; j + kPackWidth <= stop; j += kPackWidth) {
      const Lanes rest = load(row + j) - mean;
      squares = multiply_add(rest, rest, squares);
    }
    if (j >= stop) return;
    const Lanes x = load_head(row + j, stop - j, n - j);
    const Lanes rest = first_lanes(stop - j) ? x - mean : Lanes{};
    squares = multiply_add(rest, rest, squares);
  };
  add_squares(0, left);
  add_squares(right, end);
  of_row.squares = sum_of_lanes(squares);
  return of_row;
}

// visible_queries as float64 numbers, to workspace.visible, unless they are there already.
void count_visible(const Support& support, Index queries, Index n, SinkWorkspace& workspace) {
  VisibleCounts& counts = workspace.visible;
  const bool is_known = support.kind != Support::Kind::mask && counts.kind == support.kind &&
                        counts.shift == support.shift && counts.rows == queries &&
                        counts.queries.size() == static_cast<std::size_t>(n);
  if (is_known) return;
  visible_queries(support, queries, n, workspace.queries);
  counts.queries.assign(workspace.queries.begin(), workspace.queries.end());
  counts.kind = support.kind;
  counts.shift = support.shift;
  counts.rows = queries;
  counts.first_key = 0.0;
  counts.seeing = 0;
  for (Index i = 0; i < queries && support.kind != Support::Kind::mask; ++i) {
    const Index visible = support.end(i, n);
    if (visible == 0) continue;
    counts.first_key += 1.0 / static_cast<double>(visible);
    ++counts.seeing;
  }
}

// `sink_share`; of the first key and all queries from its sum, which is that of the same numbers in
// the same order.
template <class Scalar>
SinkShare share_after_sums(const MatrixView<Scalar>& attention, const Support& support,
                           const SinkRequest& request, SinkWorkspace& workspace) {
  const Index queries = attention.rows();
  if (request.first != 1 || request.queries < queries || support.kind == Support::Kind::mask)
    return sink_share(attention, support, request.first, request.queries);
  count_visible(support, queries, attention.cols(), workspace);
  const VisibleCounts& counts = workspace.visible;
  const double scale = counts.seeing == 0 ? kNaN : 1.0 / static_cast<double>(counts.seeing);
  return {workspace.rows.sums[0] * scale, counts.first_key * scale};
}

// Column sums to workspace.rows.sums and, where asked for, entropies, as `row_statistics` writes
// them, in one read.
template <class Scalar>
bool sums_and_entropies(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                        bool fast, double* entropy, SinkWorkspace& workspace) {
  if (fast && !std::is_same_v<Scalar, double>)
    return fast_row_statistics(attention, find_support, support, entropy, workspace.rows);
  if (entropy != nullptr || !find_support || !has_summable_columns(attention))
    return row_statistics(attention, find_support, support, entropy, workspace.rows);
  const Index n = attention.cols();
  workspace.rows.sums.resize(n);
  double* sums = workspace.rows.sums.data();
  const bool causal = sum_columns(attention, Index{1}, support.shift, n >= 2, sums);
  support.kind = causal ? Support::Kind::causal : Support::Kind::full;
  // A sum of finite float64 numbers can overflow, one of the shorter types cannot.
  return are_finite(sums, n, 1) || (std::is_same_v<Scalar, double> && all_finite(attention));
}

// Whether nothing is asked for that sums of whole rows or columns answer.
bool asks_for_share_alone(const SinkRequest& request, const SinkAnswers& answers) {
  return answers.entropy == nullptr && answers.incoming == nullptr && !request.position &&
         request.top == 0;
}

// Finds out the support, where that is asked for, without a sum. Returns whether all entries are
// finite.
template <class Scalar>
bool read_support(const MatrixView<Scalar>& attention, bool find_support, Support& support) {
  MatrixReading reading{true, find_support && attention.cols() >= 2};
  read_lines(attention, 0, along_memory(attention).rows(), reading, support.shift);
  if (find_support) support.kind = reading.causal ? Support::Kind::causal : Support::Kind::full;
  return reading.finite;
}

// The same of a mask, key by key.
template <class Scalar>
void far_attention_of_mask(const MatrixView<Scalar>& attention, const Support& support,
                           const FarAttention& out, SinkWorkspace& workspace) {
  const Index distance = far_distance(attention.cols());
  std::vector<double>& far = workspace.far;  // the far visible entries of a row
  std::vector<double>& unused = workspace.far_sums;
  std::vector<Index>& keys = workspace.counts;
  for_each_row(
      attention, support, workspace.rows, [&](Index i, const Wide<Scalar>* row, Index end) {
        const Index place = support.position(i);
        const Index left = std::clamp<Index>(place - distance + 1, 0, end);
        const Index right = std::clamp<Index>(place + distance, left, end);
        far.clear();
        keys.clear();
        Index visible = 0;
        for (Index j = 0; j < end; ++j) {
          if (!support.visible(i, j)) continue;
          ++visible;
          if (j >= left && j < right) continue;
          far.push_back(static_cast<double>(row[j]));
          keys.push_back(j);
        }
        const auto count = static_cast<Index>(far.size());
        unused.assign(count + 2 * kPackWidth, 0.0);
        const FarRow of_row = far_row(far.data(), count, count, count, count, unused.data());
        if (of_row.count == 0.0) return;
        const FarSums of_far_keys{of_row.sum / of_row.count, of_row.squares / of_row.count,
                                  of_row.largest, 1.0 / static_cast<double>(visible), 1};
        for (std::size_t k = 0; k < far.size(); ++k) {
          out.mass[keys[k]] += far[k];
          of_far_keys.add_to(out, keys[k]);
        }
      });
}

}  // namespace

Index far_distance(Index n) {
  return std::max<Index>({(n + 9) / 10, std::min<Index>(4, n / 4), 1});
}

template <class Scalar>
void far_attention(const MatrixView<Scalar>& attention, const Support& support,
                   const FarAttention& out, SinkWorkspace& workspace) {
  const Index n = attention.cols();
  for (double* sums_of_keys : {out.mass, out.expected, out.variance, out.largest, out.uniform})
    std::fill(sums_of_keys, sums_of_keys + n, 0.0);
  std::fill(out.queries, out.queries + n, std::int64_t{0});
  if (support.kind == Support::Kind::mask) {
    far_attention_of_mask(attention, support, out, workspace);
    return;
  }
  const Index distance = far_distance(n);
  std::vector<double>& mass = workspace.far;
  mass.assign(n + 2 * kPackWidth, 0.0);
  // of rows that give to the keys before j, at j − 1, and of those that give to the keys from j on
  std::vector<FarSums>& before = workspace.before;
  std::vector<FarSums>& from = workspace.from;
  before.assign(n, {});
  from.assign(n, {});
  for_each_row(attention, support, workspace.rows,
               [&](Index i, const Wide<Scalar>* row, Index end) {
                 const Index place = support.position(i);
                 const Index left = std::clamp<Index>(place - distance + 1, 0, end);
                 const Index right = std::clamp<Index>(place + distance, left, end);
                 const FarRow of_row = far_row(row, left, right, end, n, mass.data());
                 if (of_row.count == 0.0) return;
                 const FarSums of_far_keys{of_row.sum / of_row.count, of_row.squares / of_row.count,
                                           of_row.largest, 1.0 / static_cast<double>(end), 1};
                 if (left > 0) before[left - 1].add(of_far_keys);
                 if (right == end) return;
                 if (end == n) {
                   from[right].add(of_far_keys);
                 } else {
                   for (Index j = right; j < end; ++j) of_far_keys.add_to(out, j);
                 }
               });
  std::copy(mass.begin(), mass.begin() + n, out.mass);
  FarSums sum;
  for (Index j = n - 1; j >= 0; --j) {
    sum.add(before[j]);
    sum.add_to(out, j);
  }
  sum = {};
  for (Index j = 0; j < n; ++j) {
    sum.add(from[j]);
    sum.add_to(out, j);
  }
}

template <class Scalar>
bool sink_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                     const SinkRequest& request, SinkAnswers& answers, SinkWorkspace& workspace) {
  const Index queries = attention.rows();
  const Index n = attention.cols();
  std::vector<double>& mass = workspace.rows.sums;
  // `fast` gives the share that it gives beside other answers
  if (asks_for_share_alone(request, answers) && !request.fast) {
    if (!read_support(attention, find_support, support)) return false;
    answers.share = sink_share(attention, support, request.first, request.queries);
    return true;
  }
  if (!sums_and_entropies(attention, find_support, support, request.fast, answers.entropy,
                          workspace)) {
    if (answers.entropy != nullptr) std::fill(answers.entropy, answers.entropy + queries, kNaN);
    return false;
  }
  if (request.position) visible_queries(support, queries, n, workspace.queries);
  if (answers.incoming != nullptr) {
    count_visible(support, queries, n, workspace);
    // A key that no query sees has no mass, and 0/0 is NaN.
    const double* seeing = workspace.visible.queries.data();
    for (Index j = 0; j < n; ++j) answers.incoming[j] = mass[j] / seeing[j];
  }
  if (request.position) {
    const bool is_rounded = request.fast && !std::is_same_v<Scalar, double>;
    const auto position = [&] {
      return position_of(request.min_visibility, queries, 4.0 * kErrorOfFastSums, workspace);
    };
    auto [key, is_close] = position();
    if (is_rounded && is_close) {
      // of keys that float32 does not tell apart the exact sums decide
      row_statistics(attention, false, support, nullptr, workspace.rows);
      key = position().first;
      answers.fell_back = true;
    }
    answers.position = key;
  }
  if (request.first > 0) answers.share = share_after_sums(attention, support, request, workspace);
  if (request.top > 0) answers.top_mass = top_mass_of(request.top, mass);
  return true;
}

template <class Scalar>
void sink_tokens(const MatrixView<Scalar>& attention, const Support& support, const SinkRule& rule,
                 bool* out, SinkWorkspace& workspace) {
  const Index n = attention.cols();
  const double tau =
      rule.tau ? *rule.tau : visible_quantile(attention, support, 0.9, workspace.quantile);
  visible_queries(support, attention.rows(), n, workspace.queries);
  workspace.counts.assign(n, 0);
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
  const Index required = required_queries(rule.min_visibility, attention.rows());
  for (Index j = 0; j < n; ++j) {
    const Index queries = workspace.queries[j];
    out[j] = queries > 0 && queries >= required &&
             static_cast<double>(counts[j]) / static_cast<double>(queries) >= rule.gamma;
  }
}

template <class Scalar>
SinkShare sink_share(const MatrixView<Scalar>& attention, const Support& support, Index first,
                     Index queries) {
  const Index rows = attention.rows();
  const Index n = attention.cols();
  const Index keys = std::min(first, n);
  double share = 0.0;
  double uniform = 0.0;
  Index counted = 0;
  for (Index i = std::max<Index>(0, rows - queries); i < rows; ++i) {
    const Index visible = visible_keys(support, i, n);
    if (visible == 0) continue;
    ++counted;
    Index visible_first = 0;
    if (support.kind == Support::Kind::mask) {
      for (Index j = 0; j < keys; ++j) {
        if (!support.visible(i, j)) continue;
        ++visible_first;
        share += static_cast<double>(attention(i, j));
      }
    } else {
      visible_first = std::min(keys, visible);
      for (Index j = 0; j < visible_first; ++j) share += static_cast<double>(attention(i, j));
    }
    uniform += static_cast<double>(visible_first) / static_cast<double>(visible);
  }
  const double scale = counted == 0 ? kNaN : 1.0 / static_cast<double>(counted);
  return {share * scale, uniform * scale};
}

template <class Scalar>
bool read_heads_together(const MatrixView<Scalar>& layer, Index heads, Index shift,
                         bool find_support, Support::Kind& kind) {
  const Index n = layer.cols() / heads;
  const Index rows = layer.rows();
  const Index stride = layer.outerStride();
  bool every_head_is_causal = find_support && n >= 2;
  for (Index i = 0; every_head_is_causal && i < rows; ++i) {
    const Index visible = std::clamp<Index>(i + shift + 1, 0, n) * heads;
    const Scalar* row = layer.data() + i * stride;
    every_head_is_causal = !any_nonzero(row + visible, layer.cols() - visible, 1);
    // What is hidden is 0 where heads are causal so far.
    if (every_head_is_causal && !all_finite(matrix_view(row, Index{1}, visible, stride, Index{1})))
      return false;
  }
  if (!every_head_is_causal && !all_finite(layer)) return false;
  if (!find_support) return true;
  kind = every_head_is_causal ? Support::Kind::causal : Support::Kind::full;
  // A head of which the first row that shows it is not causal is read no further.
  for (Index h = 0; !every_head_is_causal && h < heads; ++h) {
    if (is_causal(matrix_view(layer.data() + h, rows, n, stride, heads), shift)) return false;
  }
  return true;
}

template <class Scalar>
Index incoming_of_heads(const MatrixView<Scalar>& layer, Index heads, Index shift,
                        bool find_support, bool every_head_is_causal, double* sums, double* out,
                        SinkWorkspace& workspace) {
  const Index rows = layer.rows();
  const Index n = layer.cols() / heads;
  const Index stride = layer.outerStride();
  const bool every_sum_is_finite = are_finite(sums, layer.cols(), 1);
  const auto head_at = [&](Index h) {
    return matrix_view(layer.data() + h, rows, n, stride, heads);
  };
  const auto is_causal_head = [&](Index h) {
    return every_head_is_causal || (find_support && is_causal(head_at(h), shift));
  };
  // Heads of one kind are divided together, along the memory.
  Index causal_heads = 0;
  for (Index h = 0; h < heads; ++h) causal_heads += is_causal_head(h) ? 1 : 0;
  Support support;
  support.shift = shift;
  const auto queries_of = [&](bool causal) {
    support.kind = causal ? Support::Kind::causal : Support::Kind::full;
    count_visible(support, rows, n, workspace);
    return workspace.visible.queries.data();
  };
  const bool alike = causal_heads == 0 || causal_heads == heads;
  const double* queries = alike ? queries_of(causal_heads > 0) : nullptr;
  for (Index j = 0; alike && j < n; ++j) {
    for (Index h = 0; h < heads; ++h) sums[j * heads + h] /= queries[j];
  }
  const double* divided = sums;
  separate(matrix_view(divided, Index{1}, n, n * heads, heads), heads, n, out);
  Index non_finite = 0;
  for (Index h = 0; h < heads; ++h) {
    double* means = out + h * n;
    if (!alike) {
      queries = queries_of(is_causal_head(h));
      for (Index j = 0; j < n; ++j) means[j] /= queries[j];
    }
    // A sum of finite float64 numbers can overflow, one of the shorter types cannot.
    if (every_sum_is_finite || are_finite(means, n, 1) ||
        (std::is_same_v<Scalar, double> && all_finite(head_at(h)))) {
      continue;
    }
    std::fill(means, means + n, kNaN);
    ++non_finite;
  }
  return non_finite;
}

ATTNSCOPE_COMPILE(incoming_of_heads);
ATTNSCOPE_COMPILE(read_heads_together);
ATTNSCOPE_COMPILE(sink_statistics);
ATTNSCOPE_COMPILE(sink_tokens);
ATTNSCOPE_COMPILE(far_attention);
ATTNSCOPE_COMPILE(sink_share);

}  // namespace attnscope
