// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "matrix/rows.h"
#include "signals/signal.h"
#include "simd/logarithm.h"

// Hands out the signals of a map one by one. Only kernel sources include it.
namespace attnscope {

// Minus its mean; where the entries differ by no more than `rounding` of the largest they become 0.
inline void detrend(std::vector<double>& x, double rounding) {
  if (x.empty()) return;
  const auto [low, high] = std::minmax_element(x.begin(), x.end());
  if (*high - *low <= rounding * std::max(std::abs(*low), std::abs(*high))) {
    std::fill(x.begin(), x.end(), 0.0);
    return;
  }
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
  for (double& value : x) value -= mean;
}

// What equal entries can differ by, relative to them, when each is the mean of up to `queries`
// entries that were divided by sums of up to `keys`: 2⁻⁵³ for each term, in both directions.
inline double rounding_of_means(Index queries, Index keys) {
  return 0x1p-52 * static_cast<double>(queries + keys);
}

// Squares of entries below 2^-537 vanish and those above 2^512 overflow: far from 1, x is brought
// there by a power of two, whose exponent is returned (x was 2^exponent times what it is now).
inline int rescale(double* x, Index count) {
  double largest = 0.0;
  for (Index t = 0; t < count; ++t) largest = std::max(largest, std::abs(x[t]));
  if ((largest > 0x1p-400 && largest < 0x1p400) || largest == 0.0) return 0;
  int exponent = 0;
  std::frexp(largest, &exponent);
  for (Index t = 0; t < count; ++t) x[t] = std::ldexp(x[t], -exponent);
  return exponent;
}

// −Σ p log p of the shares p = share(x) of a signal's entries, none of them negative.
template <class Share>
double entropy_of(const double* x, Index count, Share&& share) {
  Lanes sums{};
  for_each_lane(x, 0, count, count, [&](Lanes entries, Index) {
    const Lanes p = share(entries);
    sums += p * bounded_log(p);
  });
  return std::max(0.0, 0.0 - sum_of_lanes(sums));
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

// Calls visit(index, x, count, exponent) for every signal of at least min_keys entries, which is x
// times 2^exponent; index is the query for `rows`, else 0.
template <class Scalar, class Visit>
void for_each_signal(const MatrixView<Scalar>& matrix, const Support& support,
                     const SignalOptions& options, SignalScratch& scratch, Visit&& visit) {
  using Kind = SignalOptions::Kind;
  const Index queries = matrix.rows();
  const Index n = matrix.cols();
  std::vector<double>& signal = scratch.signal;
  // `per` [signal.size()] divides the signal, which is a sum of so many entries.
  const auto give = [&](Index index, const double* per) {
    const auto count = static_cast<Index>(signal.size());
    if (count < std::max<Index>(options.min_keys, 1)) return;
    // Before the division, because a mean of subnormal numbers need not be a number.
    const int exponent = rescale(signal.data(), count);
    for (std::size_t t = 0; per != nullptr && t < signal.size(); ++t) signal[t] /= per[t];
    if (options.detrend) detrend(signal, per == nullptr ? 0.0 : rounding_of_means(queries, n));
    visit(index, signal.data(), count, exponent);
  };
  RowReader<Scalar> reader(matrix, support, scratch.rows);
  if (options.kind == Kind::rows || options.kind == Kind::last) {
    const bool all = options.kind == Kind::rows;
    for (Index i = all ? 0 : queries - 1; i < queries; ++i) {
      if (row_signal(reader.row(i), i, reader.end(i), support, options, signal))
        give(all ? i : 0, nullptr);
    }
    return;
  }
  const Index first = options.drop_first ? 1 : 0;
  std::vector<double> total(n, 0.0);
  std::vector<double>& pairs = scratch.pairs;
  pairs.assign(n, 0.0);
  for (Index i = 0; i < queries; ++i) {
    const auto* row = reader.row(i);
    const Index end = reader.end(i);
    double rest = 1.0;
    if (options.drop_first) {
      rest = 0.0;
      for (Index j = 1; j < end; ++j) rest += static_cast<double>(row[j]);
      if (!(rest > 0.0)) continue;
    }
    // 1 / rest may be infinite.
    const auto entry = [&](Index j) {
      const auto x = static_cast<double>(row[j]);
      return options.drop_first ? x / rest : x;
    };
    const auto add_to = [&](auto&& place_of) {
      for (Index j = first; j < end; ++j) {
        if (support.kind == Support::Kind::mask && !support.visible(i, j)) continue;
        total[place_of(j)] += entry(j);
        pairs[place_of(j)] += 1.0;
      }
    };
    if (options.kind == Kind::offset) {
      add_to([place = support.position(i)](Index j) { return std::abs(place - j); });
    } else if (visible_keys(support, i, n) - (first == 1 && support.visible(i, 0) ? 1 : 0) >=
               options.min_keys) {
      add_to([first](Index j) { return j - first; });
    }
  }
  signal.assign(total.begin(), total.end());
  // A key that none of them sees, or a distance that no pair has, is left out of the signal.
  std::size_t visible = 0;
  for (std::size_t t = 0; t < signal.size(); ++t) {
    if (pairs[t] == 0.0) continue;
    signal[visible] = signal[t];
    pairs[visible++] = pairs[t];
  }
  signal.resize(visible);
  give(0, pairs.data());
}

}  // namespace attnscope
