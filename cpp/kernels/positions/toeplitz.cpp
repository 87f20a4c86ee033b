// SPDX-License-Identifier: MIT
#include "kernels/positions/toeplitz.h"

#include <algorithm>
#include <cmath>

#include "linalg/score_rows.h"
#include "simd/exponential.h"
#include "simd/logarithm.h"

namespace attnscope {
namespace {

// Lines of scores that are asked for ahead where one of float32 would be.
template <class Scalar>
constexpr Index kLines = sizeof(Scalar) > 4 ? 2 : 1;

// Adds what row `i` of n holds at offsets below m to sums, by m − 1 − D. Vectors are written behind
// the m-th sum. With `counts`, -infinity is left out and every other entry is counted there.
template <bool counting, class WideType>
void add_offsets(const WideType* row, Index i, Index m, Index n, double* sums, double* counts) {
  const Index first = std::max<Index>(i - m + 1, 0);
  const Index size = i + 1 - first;
  const WideType* from = row + first;
  const Index to = m - size;
  for (Index k = 0; k < size; k += kPackWidth) {
    Lanes s =
        size - k >= kPackWidth ? load(from + k) : load_head(from + k, size - k, n - first - k);
    if constexpr (counting) {
      const LaneMask visible = first_lanes(size - k) & (s > -kInfinity);
      store(counts + to + k, load(counts + to + k) + (visible ? broadcast(1.0) : Lanes{}));
      s = visible ? s : Lanes{};
    }
    store(sums + to + k, load(sums + to + k) + s);
  }
}

// The profile of rows `begin` to `end` by m − 1 − D. Where every sum is finite, so is every entry,
// and none needs to be looked at; elsewhere rows are added once more. Returns whether they are
// readable.
template <class Scalar>
bool fill_profile(RowReader<Scalar>& reader, ToeplitzAhead& ahead, Index n, Index begin, Index end,
                  Index m, double* profile, double* counts) {
  SumOfEntries<Wide<Scalar>> farther;  // than every offset
  std::fill(profile, profile + m + kPackWidth, 0.0);
  for (Index i = begin; i < end; ++i) {
    ahead.scores.ask(2 * kLines<Scalar>);
    ahead.residual.ask(1);
    const auto* row = reader.row(i);
    farther.add(row, i - m + 1, n);
    add_offsets<false>(row, i, m, n, profile, counts);
  }
  const auto visible_rows = [&](Index k) {
    return begin > 0 ? static_cast<double>(m) : static_cast<double>(k + 1);
  };
  const bool finite =
      std::all_of(profile, profile + m, [](double sum) { return std::isfinite(sum); });
  if (farther.is_readable() && finite) {
    for (Index k = 0; k < m; ++k) profile[k] /= visible_rows(k);
    return true;
  }
  std::fill(profile, profile + m + kPackWidth, 0.0);
  std::fill(counts, counts + m + kPackWidth, 0.0);
  for (Index i = begin; i < end; ++i) {
    const auto* row = reader.row(i);
    if (!is_readable(row, i + 1)) return false;
    add_offsets<true>(row, i, m, n, profile, counts);
  }
  for (Index k = 0; k < m; ++k) profile[k] = counts[k] > 0.0 ? profile[k] / counts[k] : kMissing;
  return true;
}

void fill_split(const ToeplitzOutputs& out, Index m, double value) {
  for (double* vector : {out.profile, out.row, out.variance, out.first, out.lse}) {
    std::fill(vector, vector + m, value);
  }
  for (Index i = 0; i < m; ++i)
    std::fill(out.residual + i * out.ld, out.residual + i * out.ld + m, value);
}

void store_head(double* to, Lanes lanes, Index count) {
  if (count >= kPackWidth) return store(to, lanes);
  for (Index k = 0; k < count; ++k) to[k] = lanes[k];
}

void fill_missing(double* from, const double* end) {
  for (; end - from >= kPackWidth; from += kPackWidth) store(from, broadcast(kMissing));
  for (; from < end; ++from) *from = kMissing;
}

// Early rows that are taken abreast, at most those of a group.
constexpr Index kAbreast = std::min<Index>(4, kPackWidth);
static_assert(kPackWidth % kAbreast == 0);

// The early rows `first` … `first` + kPackWidth − 1, `first` a multiple of kPackWidth, of which
// those below m exist: the last vector of each is the one at `first`. Vectors are read behind the
// end of a row where the matrix has entries there. `hiding`: keys may be invisible.
template <bool hiding, class WideType>
struct EarlyRows {
  const WideType* scores[kPackWidth];
  const double* expected[kPackWidth];  // whole vectors of it
  Index rows;                          // the last of them stands for those that do not exist
  Index n;

  // Keys of row `r` in its last vector.
  Index end(Index r) const { return std::min(r + 1, rows); }

  // kPackWidth keys of row `r` from `j` on: their scores, -infinity behind the diagonal, and
  // residuals.
  struct Keys {
    Lanes scores, residuals;
  };
  template <bool last>
  [[gnu::always_inline]] Keys keys(Index r, Index j) const {
    Lanes s;
    if constexpr (last) {
      s = n - j >= kPackWidth ? load(scores[r] + j) : load_head(scores[r] + j, end(r), n - j);
      s = first_lanes(end(r)) ? s : broadcast(-kInfinity);
    } else {
      s = load(scores[r] + j);
    }
    return {s, s - load(expected[r] + j)};
  }
  // Those of the keys that have a residual: with `hiding` what is shown, else every key up to the
  // diagonal, so that what is no number shows in a sum.
  template <bool last>
  [[gnu::always_inline]] LaneMask counted(Index r, Lanes residuals) const {
    if constexpr (hiding) return residuals > -kInfinity;
    return last ? first_lanes(end(r)) : Lanes{} == 0.0;
  }
  // Those of them that stand in the body.
  template <bool last>
  [[gnu::always_inline]] LaneMask body(Index r, Index j, Lanes residuals) const {
    LaneMask keys = counted<last>(r, residuals);
    if (j == 0) keys[0] = 0;
    return keys;
  }
};

// The largest scores of each row of a group and what is summed over its body: everything of a row
// in its own vector, so that all rows are joined at once. Keys are counted where some may be
// hidden; mass, weighted and heavy are set with weights alone.
struct BodySums {
  Lanes tops[kPackWidth], residuals[kPackWidth];
  Lanes keys[kPackWidth];
  Lanes mass[kPackWidth], weighted[kPackWidth], heavy[kPackWidth];
  Lanes squares[kPackWidth], exponentials[kPackWidth];
};

// How a group of rows was found: with numbers alone, with something else, or with NaN or +infinity.
enum class Found { numbers, hidden, unreadable };

// Residuals of the rows `first` … `first` + kPackWidth − 1, of which those below m exist, and the
// numbers of these rows. Without `hiding`, nothing but the residuals is written where a score is no
// number.
template <bool hiding, bool weighing, class Scalar>
Found split_rows(RowReader<Scalar>& reader, RowScratch& held, Index first, Index m, Index n,
                 const double* profile, const double* weights, Index weight_ld,
                 const ToeplitzOutputs& out, ToeplitzAhead& ahead) {
  BodySums sums;
  for (Index r = 0; r < kPackWidth; ++r) {
    sums.tops[r] = broadcast(-kInfinity);
    sums.residuals[r] = Lanes{};
    if constexpr (hiding) sums.keys[r] = Lanes{};
    if constexpr (weighing) sums.mass[r] = sums.weighted[r] = sums.heavy[r] = Lanes{};
  }
  LaneMask readable = Lanes{} == 0.0;
  const Index rows = std::min(kPackWidth, m - first);
  EarlyRows<hiding, Wide<Scalar>> early;
  early.rows = rows;
  early.n = n;
  auto& copies = held.of<Wide<Scalar>>();
  const Index end = std::min(n, first + kPackWidth);
  if (!reader.in_place()) copies.resize(static_cast<std::size_t>(kPackWidth * end));
  for (Index r = 0; r < kPackWidth; ++r) {
    const Index i = first + std::min(r, rows - 1);  // what comes of a row again is not stored
    early.scores[r] = reader.row(i);
    early.expected[r] = profile + (m - 1 - i);
    if (reader.in_place()) continue;
    auto* copy = copies.data() + r * end;
    std::copy_n(early.scores[r], end, copy);
    early.scores[r] = copy;
  }
  const auto weight = [&](Index i, Index j, LaneMask body) {
    const Lanes w = load_head(weights + i * weight_ld + j, std::min(m - j, kPackWidth), m - j);
    return body ? w : Lanes{};
  };
  for (Index r = 0; r < rows; ++r) {
    const Index i = first + r;
    double* residual = out.residual + i * out.ld;
    Lanes top = broadcast(-kInfinity), total{};
    const auto add = [&]<bool last>(Index j) {
      ahead.scores.ask(kLines<Scalar>);
      ahead.residual.ask(1);
      const auto keys = early.template keys<last>(r, j);
      Lanes shown = keys.residuals;
      if constexpr (hiding || last) {
        shown = early.template counted<last>(r, shown) ? shown : broadcast(kMissing);
      }
      if constexpr (last) {
        store_head(residual + j, shown, m - j);
      } else {
        store(residual + j, shown);
      }
      top = larger(keys.scores, top);
      const LaneMask body = early.template body<last>(r, j, keys.residuals);
      const Lanes rest =
          hiding || last || j == 0 ? (body ? keys.residuals : Lanes{}) : keys.residuals;
      total += rest;
      if constexpr (hiding) {
        readable &= keys.scores < kInfinity;
        sums.keys[r] += body ? broadcast(1.0) : Lanes{};
      }
      if constexpr (weighing) {
        const Lanes w = weight(i, j, body);
        sums.mass[r] += w;
        sums.heavy[r] += w > 0.0 ? broadcast(1.0) : Lanes{};
        sums.weighted[r] += w * rest;
      }
    };
    if (first > 0) add.template operator()<false>(0);
    for (Index j = kPackWidth; j < first; j += kPackWidth) add.template operator()<false>(j);
    add.template operator()<true>(first);
    fill_missing(residual + std::min(m, first + kPackWidth), residual + m);
    sums.tops[r] = top;
    sums.residuals[r] = total;
  }
  if (any(~readable)) return Found::unreadable;
  Lanes sinks;
#pragma GCC unroll 8
  for (Index r = 0; r < kPackWidth; ++r)
    sinks[r] = out.residual[(first + std::min(r, rows - 1)) * out.ld];
  const Lanes tops = row_tops(sums.tops);
  const Lanes total = row_sums(sums.residuals);
  Lanes keys = row_sums(sums.keys);
  if constexpr (!hiding) {
    const Lanes total_with_sinks = total + sinks;
    if (any(~(magnitude(total_with_sinks) < kInfinity))) return Found::hidden;
    for (Index r = 0; r < kPackWidth; ++r) keys[r] = static_cast<double>(first + r);
  }
  const Lanes mean = total / keys;
  const Lanes mass = weighing ? row_sums(sums.mass) : keys;
  const Lanes centre = weighing ? row_sums(sums.weighted) / mass : mean;
  const Lanes heavy = weighing ? row_sums(sums.heavy) : keys;
  for (Index begin = 0; begin < kPackWidth; begin += kAbreast) {
    Lanes middle[kAbreast], top[kAbreast], squares[kAbreast]{}, exponentials[kAbreast]{};
#pragma GCC unroll 4
    for (Index a = 0; a < kAbreast; ++a) {
      middle[a] = broadcast(centre[begin + a]);
      top[a] = broadcast(tops[begin + a]);
    }
    const auto add = [&]<bool last>(Index j) {
      ahead.scores.ask(6 * kLines<Scalar>);
      ahead.residual.ask(2);
      Lanes below[kAbreast];
#pragma GCC unroll 4
      for (Index a = 0; a < kAbreast; ++a) {
        const auto at_keys = early.template keys<last>(begin + a, j);
        const LaneMask body = early.template body<last>(begin + a, j, at_keys.residuals);
        Lanes rest = at_keys.residuals - middle[a];
        if (hiding || last || j == 0) rest = body ? rest : Lanes{};
        if constexpr (weighing) {
          const Index i = first + std::min(begin + a, rows - 1);
          squares[a] += weight(i, j, body) * rest * rest;
        } else {
          squares[a] += rest * rest;
        }
        below[a] = at_keys.scores - top[a];
      }
      bounded_exps(below);
#pragma GCC unroll 4
      for (Index a = 0; a < kAbreast; ++a) exponentials[a] += below[a];
    };
    if (first > 0) add.template operator()<false>(0);
    for (Index j = kPackWidth; j < first; j += kPackWidth) add.template operator()<false>(j);
    add.template operator()<true>(first);
#pragma GCC unroll 4
    for (Index a = 0; a < kAbreast; ++a) {
      sums.squares[begin + a] = squares[a];
      sums.exponentials[begin + a] = exponentials[a];
    }
  }
  const Lanes missing = broadcast(kMissing);
  const Lanes lse = tops + bounded_log(row_sums(sums.exponentials));
  store_head(out.row + first, mass > 0.0 ? centre : missing, rows);
  store_head(out.variance + first, heavy >= 2.0 ? row_sums(sums.squares) / mass : missing, rows);
  store_head(out.first + first, keys > 0.0 ? sinks - mean : missing, rows);
  store_head(out.lse + first, tops > -kInfinity ? lse : missing, rows);
  return Found::numbers;
}

}  // namespace

template <class Scalar>
bool toeplitz_split(const MatrixView<Scalar>& scores, bool late, const double* weights,
                    Index weight_ld, const ToeplitzOutputs& out, ToeplitzWorkspace& workspace,
                    ToeplitzAhead ahead) {
  const Index n = scores.rows();
  const Index m = split_rows(n, late);
  RowReader<Scalar> reader(scores, kCausal, workspace.rows);
  // Vectors are read and written behind the ends.
  const Index size = m + kPackWidth;
  double* profile = workspace.offsets.resize(2 * size);
  if (!fill_profile(reader, ahead, n, late ? m : 0, late ? 2 * m : m, m, profile, profile + size)) {
    fill_split(out, m, kMissing);
    return false;
  }
  std::reverse_copy(profile, profile + m, out.profile);
  const auto rows = [&]<bool hiding, bool weighing>(Index first) {
    return split_rows<hiding, weighing>(reader, workspace.held, first, m, n, profile, weights,
                                        weight_ld, out, ahead);
  };
  for (Index first = 0; first < m; first += kPackWidth) {
    Found reading = weights == nullptr ? rows.template operator()<false, false>(first)
                                       : rows.template operator()<true, true>(first);
    if (reading == Found::hidden) reading = rows.template operator()<true, false>(first);
    if (reading == Found::unreadable) {
      fill_split(out, m, kMissing);
      return false;
    }
  }
  return true;
}

template <class Scalar>
bool offset_variance(const MatrixView<Scalar>& values, double* mean, double* variance,
                     std::int64_t* count, ToeplitzWorkspace& workspace) {
  const Index n = values.rows();
  RowReader<Scalar> reader(values, kCausal, workspace.rows);
  double* const buffer = workspace.offsets.resize(3 * n);
  std::fill(buffer, buffer + 3 * n, 0.0);
  // All by n − 1 − D, so that a row adds to a run of them.
  for (Index i = 0; i < n; ++i) {
    const auto* row = reader.row(i);
    if (!is_readable(row, i + 1)) {
      std::fill(mean, mean + n, kMissing);
      std::fill(variance, variance + n, kMissing);
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
    mean[d] = number > 0.0 ? buffer[2 * n - 1 - d] : kMissing;
    variance[d] = number > 0.0 ? buffer[3 * n - 1 - d] / number : kMissing;
  }
  return true;
}

ATTNSCOPE_COMPILE(toeplitz_split);
ATTNSCOPE_COMPILE(offset_variance);

}  // namespace attnscope
