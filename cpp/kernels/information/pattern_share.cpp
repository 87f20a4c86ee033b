// SPDX-License-Identifier: MIT
#include "kernels/information/pattern_share.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "matrix/matrix_view.h"
#include "matrix/partial_map.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// One row: its visible entries and sums over them.
template <class WideType>
struct RowSums {
  const WideType* entries;
  Index end;
  Index n;
  Index visible;
  double squares;
};

template <class WideType, class Term>
double add_up(const WideType* row, Index begin, Index end, Index n, Term&& term) {
  if (begin >= end) return 0.0;
  Lanes sums{};
  for_each_lane(row, begin, end, n, [&](Lanes lanes, Index) { sums += term(lanes); });
  double total = 0.0;
  for (Index k = 0; k < kPackWidth; ++k) total += sums[k];
  return total;
}

template <class WideType>
double squares_between(const RowSums<WideType>& row, Index begin, Index end) {
  return add_up(row.entries, begin, end, row.n, [](Lanes lanes) { return lanes * lanes; });
}

// Sorts positions by token, so that the copies of a token stand together.
void sort_tokens(const std::int64_t* tokens, Index n, PatternWorkspace& workspace) {
  const auto size = static_cast<std::size_t>(n);
  workspace.order.resize(size);
  workspace.group.resize(size);
  std::iota(workspace.order.begin(), workspace.order.end(), Index{0});
  std::stable_sort(workspace.order.begin(), workspace.order.end(),
                   [&](Index i, Index j) { return tokens[i] < tokens[j]; });
  Index first = 0;
  for (Index place = 0; place < n; ++place) {
    const auto at = static_cast<std::size_t>(place);
    if (tokens[workspace.order[at]] != tokens[workspace.order[static_cast<std::size_t>(first)]]) {
      first = place;
    }
    workspace.group[static_cast<std::size_t>(workspace.order[at])] = first;
  }
}

// T(i) in rising order.
void find_targets(Pattern pattern, const PatternRequest& request, const Support& support, Index i,
                  Index n, PatternWorkspace& workspace) {
  std::vector<Index>& targets = workspace.targets;
  targets.clear();
  const auto add = [&](Index j) {
    if (0 <= j && j < n && support.visible(i, j)) targets.push_back(j);
  };
  const auto for_each_copy = [&](auto&& visit) {
    for (Index at = workspace.group[static_cast<std::size_t>(i)]; at < n; ++at) {
      const Index copy = workspace.order[static_cast<std::size_t>(at)];
      if (request.tokens[copy] != request.tokens[i]) break;
      if (copy != i) visit(copy);
    }
  };
  switch (pattern) {
    case Pattern::first:
      return add(0);
    case Pattern::self:
      return add(i);
    case Pattern::previous:
      return add(i - 1);
    case Pattern::next:
      return add(i + 1);
    case Pattern::duplicate:
      return for_each_copy(add);
    case Pattern::induction:
      return for_each_copy([&](Index copy) {
        if (copy + 1 != i) add(copy + 1);
      });
    case Pattern::marked:
      for (Index j = 0; j < support.end(i, n); ++j) {
        if (request.marked.visible(i, j)) add(j);
      }
  }
}

// Below this share of a row's squares their difference has lost digits, and the rest is added up.
constexpr double kCancelled = 1e-3;

// Adds a row whose targets are in workspace.targets.
template <class WideType>
void add_row(const RowSums<WideType>& row, const std::vector<Index>& targets, PatternSums& sums) {
  if (targets.empty()) {
    sums.difference += row.squares;
    return;
  }
  const double weight = 1.0 / static_cast<double>(targets.size());
  double matched = 0.0;
  double squares = 0.0;
  double apart = 0.0;
  for (const Index j : targets) {
    const auto x = static_cast<double>(row.entries[j]);
    matched += x;
    squares += x * x;
    apart += (x - weight) * (x - weight);
  }
  double outside = row.squares - squares;
  if (outside < kCancelled * row.squares) {
    outside = 0.0;
    Index begin = 0;
    for (const Index j : targets) {
      outside += squares_between(row, begin, j);
      begin = j + 1;
    }
    outside += squares_between(row, begin, row.end);
  }
  sums.matched += matched;
  sums.uniform += static_cast<double>(targets.size()) / static_cast<double>(row.visible);
  sums.difference += apart + outside;
  sums.pattern += weight;
  ++sums.queries;
}

PatternShare share_of(const PatternSums& sums, double total, double squares, Index rows, bool all) {
  if (sums.queries == 0) return {kNaN, kNaN, kNaN, 0, kNaN};
  const double of_all = all ? total : static_cast<double>(sums.queries);
  const double of_uniform = static_cast<double>(all ? rows : sums.queries);
  const double share = of_all == 0.0 ? kNaN : sums.matched / of_all;
  const double uniform = sums.uniform / of_uniform;
  return {share, uniform, share / uniform, sums.queries,
          std::sqrt(sums.difference / (squares + sums.pattern))};
}

}  // namespace

template <class Scalar>
bool pattern_share(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                   const PatternRequest& request, PatternShare* out, PatternWorkspace& workspace) {
  const Index n = attention.rows();
  if (!read_partial_map(attention, 0, find_support, support, workspace.rows)) return false;
  if (request.tokens != nullptr) sort_tokens(request.tokens, n, workspace);
  std::vector<PatternSums>& sums = workspace.sums;
  sums.assign(static_cast<std::size_t>(request.count), PatternSums{});
  double total = 0.0;
  double squares = 0.0;
  Index rows = 0;
  RowReader<Scalar> reader(attention, support, workspace.rows);
  for (Index i = 0; i < n; ++i) {
    RowSums<Wide<Scalar>> row{reader.row(i), reader.end(i), n, visible_keys(support, i, n), 0.0};
    if (row.visible == 0) continue;
    ++rows;
    row.squares = squares_between(row, 0, row.end);
    squares += row.squares;
    if (request.all) {
      total += add_up(row.entries, 0, row.end, n, [](Lanes lanes) { return lanes; });
    }
    for (Index at = 0; at < request.count; ++at) {
      find_targets(request.patterns[at], request, support, i, n, workspace);
      add_row(row, workspace.targets, sums[static_cast<std::size_t>(at)]);
    }
  }
  for (Index at = 0; at < request.count; ++at) {
    out[at] = share_of(sums[static_cast<std::size_t>(at)], total, squares, rows, request.all);
  }
  return true;
}

ATTNSCOPE_COMPILE(pattern_share);

}  // namespace attnscope
