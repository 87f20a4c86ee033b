// SPDX-License-Identifier: MIT
#include "kernels/information/divergence.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <type_traits>

#include "matrix/float_rows.h"
#include "matrix/row_logs.h"

namespace attnscope {
namespace {

// The rows of all heads for one query.
template <class Scalar>
struct LayerRows {
  std::vector<RowReader<Scalar>> readers;
  std::vector<const Wide<Scalar>*> rows;
  Index end = 0;  // no head sees a key behind it

  LayerRows(std::span<const MatrixView<Scalar>> heads, std::span<const Support> supports,
            std::vector<RowScratch>& scratch) {
    if (scratch.size() < heads.size()) scratch.resize(heads.size());
    readers.reserve(heads.size());
    for (std::size_t h = 0; h < heads.size(); ++h)
      readers.emplace_back(heads[h], supports[h], scratch[h]);
    rows.resize(heads.size());
  }

  void read(Index i) {
    end = 0;
    for (std::size_t h = 0; h < rows.size(); ++h) {
      rows[h] = readers[h].row(i);
      end = std::max(end, readers[h].end(i));
    }
  }

  const Wide<Scalar>* operator[](std::size_t h) const { return rows[h]; }
};

// visit(sum over heads, j) in whole lanes; `n` entries of a row may be read.
template <class Scalar, class Visit>
void for_each_sum(const LayerRows<Scalar>& layer, Index n, Visit&& visit) {
  for (Index j = 0; j < layer.end; j += kPackWidth) {
    Lanes total{};
    for (const auto* row : layer.rows) {
      total +=
          j + kPackWidth <= layer.end ? load(row + j) : load_head(row + j, layer.end - j, n - j);
    }
    visit(total, j);
  }
}

// log of the mean over heads, to `out`, whole lanes.
template <class Scalar>
void log_mean(const LayerRows<Scalar>& layer, Index n, double* out) {
  const double scale = static_cast<double>(layer.rows.size());
  for_each_sum(layer, n, [&](Lanes total, Index j) { store(out + j, bounded_log(total / scale)); });
}

// Σ_j x_j (log x_j − log_mean_j) of a row whose entropy is known; NaN where that is.
template <class WideType>
double row_divergence(double entropy, const WideType* row, Index end, Index n,
                      const double* log_of_mean) {
  return -entropy - row_cross(row, end, n, log_of_mean);
}

Index padded(Index n) { return (n + 2 * kPackWidth - 1) / (2 * kPackWidth) * (2 * kPackWidth); }

// The divergences of query i, whose rows are read, to out[h·stride]; `entropy` as in
// head_divergence.
template <class Scalar>
void divergences_of_query(const LayerRows<Scalar>& rows, Index i, Index n, double* log_of_mean,
                          double* out, Index stride, const double* entropy) {
  log_mean(rows, n, log_of_mean);
  for (std::size_t h = 0; h < rows.rows.size(); ++h) {
    const Index at = static_cast<Index>(h) * stride;
    const Index keys = rows.readers[h].end(i);
    const double entropy_of_row =
        entropy != nullptr ? entropy[at] : row_entropy(rows[h], keys, n, nullptr);
    out[at] = row_divergence(entropy_of_row, rows[h], keys, n, log_of_mean);
  }
}

// Sums of x log(x / mean) over rows of heads that are read side by side, in float32 with log2
// scaled as `scaled_log2` gives it.
constexpr Index kHeadsTogether = 4;

// What float32 does to a term x log(x / mean), relative to |x log(x / mean)|: the logarithm's error
// of 9e-7, and kChain roundings of 2⁻²⁴ where terms are added up; and relative to x: the roundings
// of 1 / mean and of the quotient, which the logarithm passes on. A quotient below the normal
// numbers has a logarithm that is off by less than 2⁷, and such an entry is below 2⁻¹²⁶ of the
// mean. So is that of a mean below 2⁻¹²⁶, whose inverse is infinite, and such an entry is below
// 2⁻¹²⁶ times the heads; what products lose below the normal numbers is less than that.
constexpr double kErrorOfTerms = 1.5e-6;
constexpr double kErrorOfQuotients = 1.3e-7;
constexpr double kTinyQuotients = 0x1p-110;
constexpr double kErrorOfTinyMeans = 0x1p-119;
constexpr double kLogOfTwo = 0.69314718055994530942;
constexpr double kLogOfUnit = kLogOfTwo / static_cast<double>(kLogOfDoubling);

// The largest relative error of `fast`.
constexpr double kFastBound = 1e-5;

struct FloatTerms {
  Lanes sum{};              // Σ x·scaled_log2(x / mean)
  FloatVector magnitude{};  // Σ x·(|scaled_log2(x / mean)| + kQuotientWeight)
};

// The weight of x beside that of its scaled logarithm in an error.
constexpr float kQuotientWeight =
    static_cast<float>(kErrorOfQuotients / (kErrorOfTerms * kLogOfUnit));

inline FloatVector magnitudes_of(FloatVector x) {
  return reinterpret_cast<FloatVector>(reinterpret_cast<IntVector>(x) & 0x7fffffff);
}

// Adds the terms of one row of each of kHeads heads; `signs` collects the sign bits of entries. n
// >= kFloatWidth entries of a row may be read.
template <Index kHeads, class Entry>
void add_terms(const Entry* const* rows, const float* inverse_mean, Index end, Index n,
               FloatTerms* terms, IntVector& signs) {
  FloatVector chains[kHeads] = {};
  FloatVector magnitude[kHeads];
  IntVector met = signs;
  for (Index h = 0; h < kHeads; ++h) magnitude[h] = terms[h].magnitude;
  const auto add = [&](Index j, auto&& entries) __attribute__((always_inline)) {
    const FloatVector inverse = vector_at<FloatVector>(inverse_mean + j);
#pragma GCC unroll 4
    for (Index h = 0; h < kHeads; ++h) {
      const FloatVector x = entries(load_floats(rows[h] + j));
      const FloatVector logs = scaled_log2(x * inverse);
      met |= reinterpret_cast<IntVector>(x);
      chains[h] += x * logs;
      magnitude[h] += x * (magnitudes_of(logs) + kQuotientWeight);
    }
  };
  const auto flush = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (Index h = 0; h < kHeads; ++h) {
      terms[h].sum = plus_floats(terms[h].sum, chains[h]);
      chains[h] = FloatVector{};
    }
  };
  Index j = 0;
  for (; j + kChain * kFloatWidth <= end; flush()) {
    for (const Index stop = j + kChain * kFloatWidth; j < stop; j += kFloatWidth)
      add(j, [](FloatVector x) { return x; });
  }
  for (; j + kFloatWidth <= end; j += kFloatWidth) add(j, [](FloatVector x) { return x; });
  if (j < end) {
    // a vector that begins before j where it would end behind the row
    const Index first = std::min(j, n - kFloatWidth);
    add(first, [&](FloatVector x) { return lanes_between(x, j - first, end - first); });
  }
  flush();
  for (Index h = 0; h < kHeads; ++h) terms[h].magnitude = magnitude[h];
  signs = met;
}

inline void store_floats(float* to, Lanes x) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  _mm256_storeu_ps(to, _mm512_cvtpd_ps(reinterpret_cast<__m512d>(x)));
#elif defined(ATTNSCOPE_AVX_PACKS)
  _mm_storeu_ps(to, _mm256_cvtpd_ps(reinterpret_cast<__m256d>(x)));
#else
  for (Index k = 0; k < kPackWidth; ++k) to[k] = static_cast<float>(x[k]);
#endif
}

// Σ over the queries [begin, end) of every head's divergence in float32, to sums[h·stride]. False
// where one of them may be off by more than kFastBound, or an entry has a sign. n >= kFloatWidth.
template <class Scalar>
bool float_divergences(LayerRows<Scalar>& rows, Index begin, Index end, Index n, double* sums,
                       Index stride, DivergenceWorkspace& workspace) {
  const auto heads = static_cast<Index>(rows.rows.size());
  const double scale = static_cast<double>(heads);
  auto* inverse_mean = reinterpret_cast<float*>(workspace.mean.resize(padded(n)));
  std::fill(inverse_mean, inverse_mean + padded(n), 0.0f);
  auto* terms = reinterpret_cast<FloatTerms*>(
      workspace.terms.resize(heads * static_cast<Index>(sizeof(FloatTerms) / sizeof(double))));
  std::fill(terms, terms + heads, FloatTerms{});
  IntVector signs{};
  Lanes mass{};
  for (Index i = begin; i < end; ++i) {
    rows.read(i);
    for_each_sum(rows, n, [&](Lanes total, Index j) {
      mass += total;
      store_floats(inverse_mean + j, scale / total);
    });
    Index h = 0;
    for (; h + kHeadsTogether <= heads; h += kHeadsTogether)
      add_terms<kHeadsTogether>(rows.rows.data() + h, inverse_mean, rows.end, n, terms + h, signs);
    for (; h < heads; ++h)
      add_terms<1>(rows.rows.data() + h, inverse_mean, rows.end, n, terms + h, signs);
  }
  const double tiny = kTinyQuotients * sum_by_halves(mass) +
                      kErrorOfTinyMeans * scale * static_cast<double>((end - begin) * n);
  bool holds = lane_bits(signs) == 0;
  for (Index h = 0; h < heads; ++h) {
    const double sum = kLogOfUnit * sum_by_halves(terms[h].sum);
    const double magnitude = kLogOfUnit * sum_by_halves(plus_floats(Lanes{}, terms[h].magnitude));
    // not where one of them is infinite or NaN
    holds = holds && kErrorOfTerms * magnitude + tiny <= kFastBound * sum &&
            sum < std::numeric_limits<double>::infinity();
    sums[h * stride] = sum;
  }
  return holds;
}

}  // namespace

template <class Scalar>
void head_divergence(std::span<const MatrixView<Scalar>> heads, std::span<const Support> supports,
                     Index begin, Index end, double* out, Index stride,
                     DivergenceWorkspace& workspace, const double* entropy) {
  LayerRows<Scalar> rows(heads, supports, workspace.rows);
  const Index n = heads.front().cols();
  double* log_of_mean = workspace.mean.resize(padded(n));
  std::fill(log_of_mean, log_of_mean + padded(n), 0.0);
  for (Index i = begin; i < end; ++i) {
    rows.read(i);
    divergences_of_query(rows, i, n, log_of_mean, out + i, stride,
                         entropy == nullptr ? nullptr : entropy + i);
  }
}

template <class Scalar>
void fast_head_divergence(std::span<const MatrixView<Scalar>> heads,
                          std::span<const Support> supports, Index begin, Index end, double* sums,
                          bool* fell_back, Index stride, DivergenceWorkspace& workspace) {
  assert(begin % kDivergenceRows == 0);
  LayerRows<Scalar> rows(heads, supports, workspace.rows);
  const Index n = heads.front().cols();
  const auto count = static_cast<Index>(heads.size());
  bool is_tried = !std::is_same_v<Scalar, double> && n >= kFloatWidth;
  for (Index first = begin; first < end; first += kDivergenceRows) {
    const Index stop = std::min(first + kDivergenceRows, end);
    const Index group = first / kDivergenceRows;
    if constexpr (!std::is_same_v<Scalar, double>) {
      fell_back[group] =
          n >= kFloatWidth &&
          !(is_tried && float_divergences(rows, first, stop, n, sums + group, stride, workspace));
      if (is_tried && !fell_back[group]) continue;
      // Heads too alike for float32 mostly are so in all rows, but for the first: those have few
      // keys to differ in.
      is_tried = is_tried && first == 0;
    }
    double* log_of_mean = workspace.mean.resize(padded(n));
    std::fill(log_of_mean, log_of_mean + padded(n), 0.0);
    double* of_query = workspace.factors.resize(count);
    for (Index h = 0; h < count; ++h) sums[h * stride + group] = 0.0;
    for (Index i = first; i < stop; ++i) {
      rows.read(i);
      divergences_of_query(rows, i, n, log_of_mean, of_query, 1, nullptr);
      for (Index h = 0; h < count; ++h) sums[h * stride + group] += of_query[h];
    }
  }
}

template <class Scalar>
void sink_removal(std::span<const MatrixView<Scalar>> heads, std::span<const Support> supports,
                  const bool* removed, Index key_stride, Index begin, Index end,
                  const RemovalRows& out, DivergenceWorkspace& workspace) {
  const Index n = heads.front().cols();
  LayerRows<Scalar> rows(heads, supports, workspace.rows);
  double* log_of_mean = workspace.mean.resize(padded(n));
  double* log_of_removed_mean = workspace.removed_mean.resize(padded(n));
  std::fill(log_of_mean, log_of_mean + padded(n), 0.0);
  // 1 for the keys that stay, and one row of rescaled entries.
  double* factors = workspace.factors.resize(2 * padded(n));
  double* rescaled = factors + padded(n);
  for (Index j = 0; j < padded(n); ++j) factors[j] = j < n && !removed[j * key_stride] ? 1.0 : 0.0;
  std::vector<double> left(heads.size());
  const auto learned = [&](std::size_t h, Index i) {
    return out.sink_mass == nullptr ? 0.0 : out.sink_mass[static_cast<Index>(h) * out.stride + i];
  };

  for (Index i = begin; i < end; ++i) {
    rows.read(i);
    log_mean(rows, n, log_of_mean);
    double survivors = 0.0;
    double mean_learned = 0.0;
    double mean_learned_after = 0.0;
    std::fill(log_of_removed_mean, log_of_removed_mean + padded(rows.end), 0.0);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      Lanes mass{};
      for_each_lane(rows[h], 0, rows.end, n,
                    [&](Lanes x, Index j) { mass += x * load(factors + j); });
      left[h] = sum_of_lanes(mass) + learned(h, i);
      mean_learned += learned(h, i) / static_cast<double>(heads.size());
      if (!(left[h] > 0.0)) continue;
      survivors += 1.0;
      mean_learned_after += learned(h, i) / left[h];
      for_each_lane(rows[h], 0, rows.end, n, [&](Lanes x, Index j) {
        double* at = log_of_removed_mean + j;
        store(at, load(at) + x * load(factors + j) / left[h]);
      });
    }
    for (Index j = 0; j < rows.end; j += kPackWidth) {
      double* at = log_of_removed_mean + j;
      store(at, bounded_log(load(at) / survivors));
    }
    mean_learned_after /= survivors;
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const Index at = static_cast<Index>(h) * out.stride + i;
      out.excluded[at] = !(left[h] > 0.0);
      if (out.excluded[at]) {
        out.before[at] = 0.0;
        out.after[at] = 0.0;
        std::fill(rescaled, rescaled + n, 0.0);
      } else {
        std::fill(rescaled + rows.end, rescaled + n, 0.0);
        for_each_lane(rows[h], 0, rows.end, n, [&](Lanes x, Index j) {
          store(rescaled + j, x * load(factors + j) / left[h]);
        });
        const Index keys = rows.end;
        out.before[at] =
            row_divergence(row_entropy(rows[h], keys, n, nullptr), rows[h], keys, n, log_of_mean);
        out.after[at] = row_divergence(row_entropy(rescaled, keys, n, nullptr), rescaled, keys, n,
                                       log_of_removed_mean);
        if (learned(h, i) > 0.0) {
          const double rest = learned(h, i) / left[h];
          out.before[at] += learned(h, i) * std::log(learned(h, i) / mean_learned);
          out.after[at] += rest * std::log(rest / mean_learned_after);
        }
      }
      if (out.attention != nullptr) {
        std::copy(rescaled, rescaled + n, out.attention + at * out.width);
      }
    }
  }
}

ATTNSCOPE_COMPILE(head_divergence);
ATTNSCOPE_COMPILE(fast_head_divergence);
ATTNSCOPE_COMPILE(sink_removal);

}  // namespace attnscope
