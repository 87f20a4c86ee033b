// SPDX-License-Identifier: MIT
#include "kernels/positions/toeplitz.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "matrix/rows.h"
#include "simd/exponential.h"
#include "simd/logarithm.h"

namespace attnscope {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

constexpr Support kCausal{.kind = Support::Kind::causal};

// `size` rounded up to whole vectors.
Index whole_vectors(Index size) { return (size + kPackWidth - 1) / kPackWidth * kPackWidth; }

// Whether all of a row's first entries are numbers or -infinity.
template <class WideType>
bool is_readable(const WideType* row, Index end) {
  // A number of the entry's own size, so that the loop vectorises.
  using Flag = std::conditional_t<sizeof(WideType) == 8, std::int64_t, std::int32_t>;
  Flag good = 1;
  for (Index j = 0; j < end; ++j) good &= row[j] < std::numeric_limits<WideType>::infinity() ? 1 : 0;
  return good != 0;
}

// Adds what row `i` holds at offsets below m to sums and counts, both by m − 1 − D.
template <class WideType>
void add_offsets(const WideType* row, Index i, Index m, double* __restrict sums, double* __restrict counts) {
  const Index first = std::max<Index>(i - m + 1, 0);
  const Index shift = m - 1 - i;
  for (Index j = first; j <= i; ++j) {
    const double s = static_cast<double>(row[j]);
    const bool visible = s > -kInfinity;
    sums[shift + j] += visible ? s : 0.0;
    counts[shift + j] += visible ? 1.0 : 0.0;
  }
}

// One early row in whole vectors, and the sums over it.
struct EarlyRow {
  double* scores;
  double* residuals;  // 0 where there is none
  double* body;       // 1 for a key of the body that has a residual, 0 for others
  double* weights;
  Index size;

  double log_sum() const {
    Lanes top = broadcast(-kInfinity);
    for (Index j = 0; j < size; j += kPackWidth) top = larger(top, load(scores + j));
    double largest = -kInfinity;
    for (Index lane = 0; lane < kPackWidth; ++lane) largest = std::max(largest, top[lane]);
    if (largest == -kInfinity) return kNaN;
    Lanes total{};
    for (Index j = 0; j < size; j += kPackWidth) {
      total += bounded_exp(load(scores + j) - largest);
    }
    return largest + std::log(sum(total));
  }
  double weighted_sum(const double* of) const {
    Lanes total{};
    for (Index j = 0; j < size; j += kPackWidth) {
      total = multiply_add(load(of + j), load(residuals + j), total);
    }
    return sum(total);
  }
  double weighted_squares(double centre) const {
    Lanes total{};
    for (Index j = 0; j < size; j += kPackWidth) {
      const Lanes rest = load(residuals + j) - centre;
      total = multiply_add(load(weights + j) * rest, rest, total);
    }
    return sum(total);
  }
};

double sum_of(const double* values, Index size) {
  Lanes total{};
  for (Index j = 0; j < size; j += kPackWidth) total += load(values + j);
  return sum(total);
}

void fill_split(const ToeplitzOutputs& out, Index m, double value) {
  for (double* vector : {out.profile, out.row, out.variance, out.first, out.lse}) {
    std::fill(vector, vector + m, value);
  }
  for (Index i = 0; i < m; ++i) std::fill(out.residual + i * out.ld, out.residual + i * out.ld + m, value);
}

// Residuals of one early row to `out`, and the row's numbers.
template <class WideType>
void split_row(const WideType* row, Index i, Index m, const double* profile, const double* weights,
               EarlyRow early, const ToeplitzOutputs& out) {
  const double* expected = profile + (m - 1 - i);
  double* residual = out.residual + i * out.ld;
  early.size = whole_vectors(i + 1);
  for (Index j = 0; j <= i; ++j) {
    const double s = static_cast<double>(row[j]);
    const double r = s - expected[j];
    const bool counted = r > -kInfinity;
    early.scores[j] = s;
    residual[j] = counted ? r : kNaN;
    early.residuals[j] = counted ? r : 0.0;
    early.body[j] = counted ? 1.0 : 0.0;
  }
  std::fill(residual + i + 1, residual + m, kNaN);
  for (Index j = i + 1; j < early.size; ++j) {
    early.scores[j] = -kInfinity;
    early.residuals[j] = early.body[j] = 0.0;
  }
  early.body[0] = 0.0;
  if (weights == nullptr) {
    early.weights = early.body;
  } else {
    for (Index j = 0; j <= i; ++j) early.weights[j] = early.body[j] > 0.0 ? weights[j] : 0.0;
    std::fill(early.weights + i + 1, early.weights + early.size, 0.0);
  }
  const double keys = sum_of(early.body, early.size);
  const double mass = weights == nullptr ? keys : sum_of(early.weights, early.size);
  const double centre = early.weighted_sum(early.weights) / mass;
  const auto heavy = std::count_if(early.weights, early.weights + early.size, [](double w) { return w > 0.0; });
  out.row[i] = mass > 0.0 ? centre : kNaN;
  out.variance[i] = heavy >= 2 ? early.weighted_squares(centre) / mass : kNaN;
  const double mean = weights == nullptr ? centre : early.weighted_sum(early.body) / keys;
  out.first[i] = keys > 0.0 ? residual[0] - mean : kNaN;
  out.lse[i] = early.log_sum();
}

// Sums over late rows by offset, a row a lane.
struct LateSums {
  Lanes* largest;   // of the largest score so far
  Lanes* products;  // of the sums of exponentials less that score, which are 1 to m + 1
  Lanes* logs;      // of the products taken so far
  Lanes* kept;      // of what is left of the attention

  void take_logs(Index m) const {
    for (Index d = 0; d < m; ++d) {
      logs[d] += bounded_log(products[d]);
      products[d] = broadcast(1.0);
    }
  }
};

// Of kPackWidth late rows whose scores are `shares`: the share of each key among the nearest and itself to
// `shares`, the share of the nearer ones to `keeps`, and the sums.
void add_late_rows(Lanes* shares, Lanes* keeps, Lanes top, Lanes total, Index m, const LateSums& sums) {
  for (Index d = 0; d < m; ++d) {
    const Lanes s = shares[d];
    const Lanes above = s - top;
    const LaneMask rises = above > 0.0;
    const Lanes e = bounded_exp(rises ? -above : above);
    const Lanes older = rises ? total * e : total;
    const Lanes newest = rises ? broadcast(1.0) : e;
    total = older + newest;
    top = rises ? s : top;
    const Lanes inverse = 1.0 / total;
    shares[d] = newest * inverse;
    keeps[d] = newest > 0.0 ? smaller(older * inverse, broadcast(1.0)) : broadcast(1.0);
    sums.largest[d] += top;
    sums.products[d] *= total;
  }
  Lanes left = broadcast(1.0);
  for (Index d = m - 1; d >= 0; --d) {
    sums.kept[d] += left;
    left *= keeps[d];
  }
}

// Adds the attention of kPackWidth late rows that are cut to each of the levels (the farthest offset seen,
// ascending), rows of `attention` and `sticks` `ld` apart.
void break_sticks(const Lanes* shares, const Lanes* keeps, const std::int64_t* queries, Index count, bool body,
                  double* __restrict sticks, double* __restrict attention, Index ld) {
  std::fill(sticks, sticks + kPackWidth * ld, 0.0);
  Index known = 0;  // offsets below it are in the sticks
  for (Index q = 0; q < count; ++q) {
    const Index seen = queries[q] + (body ? 0 : 1);
    double* row = attention + q * ld;
    Lanes left = broadcast(1.0);
    for (Index d = seen - 1; d >= known; --d) left *= keeps[d];
    for (Index d = 0; d < known; d += kPackWidth) {
      Lanes total = load(row + d);
      for (Index lane = 0; lane < kPackWidth; ++lane) {
        double* stick = sticks + lane * ld + d;
        const Lanes p = load(stick) * left[lane];
        store(stick, p);
        total += p;
      }
      store(row + d, total);
    }
    left = broadcast(1.0);
    for (Index d = seen - 1; d >= known; --d) {
      const Lanes p = shares[d] * left;
      left *= keeps[d];
      row[d] += sum(p);
      for (Index lane = 0; lane < kPackWidth; ++lane) sticks[lane * ld + d] = p[lane];
    }
    known = std::max(known, seen);
  }
}

}  // namespace

template <class Scalar>
bool toeplitz_split(const MatrixView<Scalar>& scores, bool late, const double* weights, Index weight_ld,
                    const ToeplitzOutputs& out, ToeplitzWorkspace& workspace) {
  const Index m = split_rows(scores.rows(), late);
  RowReader<Scalar> reader(scores, kCausal, workspace.rows);
  double* profile = workspace.offsets.resize(2 * m);
  double* counts = profile + m;
  std::fill(profile, profile + 2 * m, 0.0);
  for (Index i = late ? m : 0; i < (late ? 2 * m : m); ++i) {
    const auto* row = reader.row(i);
    if (!is_readable(row, i + 1)) {
      fill_split(out, m, kNaN);
      return false;
    }
    add_offsets(row, i, m, profile, counts);
  }
  for (Index k = 0; k < m; ++k) {
    profile[k] = counts[k] > 0.0 ? profile[k] / counts[k] : kNaN;
    out.profile[m - 1 - k] = profile[k];
  }
  const Index size = whole_vectors(m);
  double* buffer = workspace.row.resize(4 * size);
  const EarlyRow early{buffer, buffer + size, buffer + 2 * size, buffer + 3 * size, 0};
  for (Index i = 0; i < m; ++i) {
    const auto* row = reader.row(i);
    if (!is_readable(row, i + 1)) {
      fill_split(out, m, kNaN);
      return false;
    }
    split_row(row, i, m, profile, weights == nullptr ? nullptr : weights + i * weight_ld, early, out);
  }
  return true;
}

template <class Scalar>
bool mask_only(const MatrixView<Scalar>& scores, double sink, const std::int64_t* queries, Index count, bool body,
               double* lse, double* cut, double* share, double* attention, Index ld,
               ToeplitzWorkspace& workspace) {
  const Index m = split_rows(scores.rows(), true);
  const Index size = whole_vectors(m);
  const auto fill = [&] {
    for (double* vector : {lse, cut, share}) std::fill(vector, vector + m, kNaN);
    for (Index q = 0; q < count; ++q) std::fill(attention + q * ld, attention + q * ld + m, kNaN);
  };
  RowReader<Scalar> reader(scores, kCausal, workspace.rows);
  for (Index i = 0; i < m; ++i) {
    if (is_readable(reader.row(i), i + 1)) continue;
    fill();
    return false;
  }
  Lanes* shares = lane_buffer(workspace.lanes, 2 * m);
  Lanes* keeps = shares + m;
  Lanes* buffer = lane_buffer(workspace.sums, 4 * m);
  const LateSums sums{buffer, buffer + m, buffer + 2 * m, buffer + 3 * m};
  std::fill(buffer, buffer + 4 * m, Lanes{});
  std::fill(sums.products, sums.products + m, broadcast(1.0));
  double* sticks = workspace.sticks.resize(kPackWidth * size);
  double* sticks_sum = workspace.attention.resize(count * size);
  std::fill(sticks_sum, sticks_sum + count * size, 0.0);
  // So many products of numbers up to m + 1 stay in range.
  const Index groups_a_log = std::max<Index>(1, static_cast<Index>(1000.0 / std::log2(static_cast<double>(m + 2))));

  Index rows = 0;    // late rows that see themselves
  Index groups = 0;  // of kPackWidth of them
  Index lane = 0;
  // A lane without a row sees a sink of logit 0 and nothing else: it adds log 1 to every sum.
  Lanes top{};
  Lanes total{};
  const auto finish_group = [&] {
    for (Index empty = lane; empty < kPackWidth; ++empty) {
      top[empty] = 0.0;
      total[empty] = 1.0;
      for (Index d = 0; d < m; ++d) shares[d][empty] = -kInfinity;
    }
    add_late_rows(shares, keeps, top, total, m, sums);
    if (count > 0) break_sticks(shares, keeps, queries, count, body, sticks, sticks_sum, size);
    if (++groups % groups_a_log == 0) sums.take_logs(m);
    lane = 0;
  };
  for (Index i = m; i < 2 * m; ++i) {
    const auto* row = reader.row(i);
    if (!is_readable(row, i + 1)) {
      fill();
      return false;
    }
    if (!(static_cast<double>(row[i]) > -kInfinity)) continue;
    double* column = reinterpret_cast<double*>(shares) + lane;
    for (Index d = 0; d < m; ++d) column[d * kPackWidth] = static_cast<double>(row[i - d]);
    top[lane] = sink;
    total[lane] = sink > -kInfinity ? 1.0 : 0.0;
    ++rows;
    if (++lane == kPackWidth) finish_group();
  }
  if (rows == 0) {
    fill();
    return true;
  }
  if (lane > 0) finish_group();
  sums.take_logs(m);

  const double number = static_cast<double>(rows);
  const double empty = static_cast<double>(groups * kPackWidth - rows);
  for (Index d = 0; d < m; ++d) {
    lse[d] = (sum(sums.largest[d]) + sum(sums.logs[d])) / number;
    share[d] = std::max(0.0, 1.0 - (sum(sums.kept[d]) - empty) / number);
  }
  for (Index d = 0; d < m; ++d) cut[d] = std::max(0.0, lse[m - 1] - lse[d]);
  for (Index q = 0; q < count; ++q) {
    const Index i = queries[q];
    double* to = attention + q * ld;
    std::fill(to, to + m, body && i == 0 ? kNaN : 0.0);
    for (Index d = 0; d < i + (body ? 0 : 1); ++d) to[i - d] = sticks_sum[q * size + d] / number;
  }
  return true;
}

template <class Scalar>
bool offset_variance(const MatrixView<Scalar>& values, double* mean, double* variance, std::int64_t* count,
                     ToeplitzWorkspace& workspace) {
  const Index n = values.rows();
  RowReader<Scalar> reader(values, kCausal, workspace.rows);
  double* const buffer = workspace.offsets.resize(3 * n);
  std::fill(buffer, buffer + 3 * n, 0.0);
  // All by n − 1 − D, so that a row adds to a run of them.
  for (Index i = 0; i < n; ++i) {
    const auto* row = reader.row(i);
    if (!is_readable(row, i + 1)) {
      std::fill(mean, mean + n, kNaN);
      std::fill(variance, variance + n, kNaN);
      std::fill(count, count + n, std::int64_t{-1});
      return false;
    }
    double* __restrict numbers = buffer + (n - 1 - i);
    double* __restrict means = numbers + n;
    double* __restrict squares = means + n;
    for (Index j = 0; j <= i; ++j) {
      const double x = static_cast<double>(row[j]);
      const bool visible = x > -kInfinity;
      const double number = numbers[j] + 1.0;
      const double rest = x - means[j];
      const double moved = means[j] + rest / number;
      squares[j] = visible ? squares[j] + rest * (x - moved) : squares[j];
      means[j] = visible ? moved : means[j];
      numbers[j] = visible ? number : numbers[j];
    }
  }
  for (Index d = 0; d < n; ++d) {
    const double number = buffer[n - 1 - d];
    count[d] = static_cast<std::int64_t>(number);
    mean[d] = number > 0.0 ? buffer[2 * n - 1 - d] : kNaN;
    variance[d] = number > 0.0 ? buffer[3 * n - 1 - d] / number : kNaN;
  }
  return true;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                                             \
  template bool toeplitz_split<Scalar>(const MatrixView<Scalar>&, bool, const double*, Index,                     \
                                       const ToeplitzOutputs&, ToeplitzWorkspace&);                               \
  template bool mask_only<Scalar>(const MatrixView<Scalar>&, double, const std::int64_t*, Index, bool, double*,   \
                                  double*, double*, double*, Index, ToeplitzWorkspace&);                          \
  template bool offset_variance<Scalar>(const MatrixView<Scalar>&, double*, double*, std::int64_t*, ToeplitzWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
