// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <numeric>

#include "kernels/base/rows.h"
#include "kernels/base/signal.h"

// Hands out the signals of a map one by one. Only kernel sources include it.
namespace attnscope {

inline void detrend(std::vector<double>& x) {
  if (x.empty()) return;
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  const double mean =
      *low == *high ? *low
                    : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  for (double& value : x) value -= mean;
}

// The visible entries of row i in the order of their keys, to `signal`; false where nothing is left
// without key 0.
template <class WideType>
bool row_signal(const WideType* row, Index i, Index end, const Support& support,
                const SignalOptions& options, std::vector<double>& signal) {
  const Index first = options.drop_first ? 1 : 0;
  if (support.kind == Support::Kind::mask) {
    signal.clear();
    for (Index j = first; j < end; ++j) {
      if (support.visible(i, j)) signal.push_back(static_cast<double>(row[j]));
    }
  } else {
    signal.assign(row + std::min(first, end), row + end);
  }
  if (!options.drop_first) return true;
  const double rest = std::accumulate(signal.begin(), signal.end(), 0.0);
  if (!(rest > 0.0)) return false;
  for (double& value : signal) value /= rest;
  return true;
}

// Calls visit(index, x, count) for every signal of at least min_keys entries; index is the query
// for `rows`, else 0.
template <class Scalar, class Visit>
void for_each_signal(const MatrixView<Scalar>& matrix, const Support& support,
                     const SignalOptions& options, SignalScratch& scratch, Visit&& visit) {
  using Kind = SignalOptions::Kind;
  const Index n = matrix.rows();
  std::vector<double>& signal = scratch.signal;
  const auto give = [&](Index index) {
    if (static_cast<Index>(signal.size()) < std::max<Index>(options.min_keys, 1)) return;
    if (options.detrend) detrend(signal);
    visit(index, signal.data(), static_cast<Index>(signal.size()));
  };
  RowReader<Scalar> reader(matrix, support, scratch.rows);
  if (options.kind == Kind::rows || options.kind == Kind::last) {
    const bool all = options.kind == Kind::rows;
    for (Index i = all ? 0 : n - 1; i < n; ++i) {
      if (row_signal(reader.row(i), i, reader.end(i), support, options, signal)) give(all ? i : 0);
    }
    return;
  }
  const Index first = options.drop_first ? 1 : 0;
  std::vector<double> total(static_cast<std::size_t>(n), 0.0);
  std::vector<double>& pairs = scratch.pairs;
  pairs.assign(static_cast<std::size_t>(n), 0.0);
  Index rows = 0;
  for (Index i = 0; i < n; ++i) {
    const auto* row = reader.row(i);
    const Index end = reader.end(i);
    double scale = 1.0;
    if (options.drop_first) {
      double rest = 0.0;
      for (Index j = 1; j < end; ++j) rest += static_cast<double>(row[j]);
      if (!(rest > 0.0)) continue;
      scale = 1.0 / rest;
    }
    if (options.kind == Kind::mean) {
      if (visible_keys(support, i, n) - first < options.min_keys) continue;
      for (Index j = first; j < end; ++j) {
        total[static_cast<std::size_t>(j - first)] += scale * static_cast<double>(row[j]);
      }
      ++rows;
      continue;
    }
    for (Index j = first; j < end; ++j) {
      if (support.kind == Support::Kind::mask && !support.visible(i, j)) continue;
      const auto distance = static_cast<std::size_t>(i < j ? j - i : i - j);
      total[distance] += scale * static_cast<double>(row[j]);
      pairs[distance] += 1.0;
    }
  }
  if (options.kind == Kind::mean) {
    if (rows == 0) return;
    signal.assign(total.begin(), total.end() - first);
    for (double& value : signal) value /= static_cast<double>(rows);
  } else {
    std::size_t farthest = pairs.size();
    while (farthest > 0 && pairs[farthest - 1] == 0.0) --farthest;
    signal.assign(total.begin(), total.begin() + static_cast<std::ptrdiff_t>(farthest));
    for (std::size_t d = 0; d < farthest; ++d) signal[d] /= std::max(pairs[d], 1.0);
  }
  give(0);
}

}  // namespace attnscope
