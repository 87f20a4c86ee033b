// SPDX-License-Identifier: MIT
#include "kernels/information/divergence.h"

#include <algorithm>
#include <cmath>

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

// log of the mean over heads, to `out`, whole lanes; `n` entries of a row may be read.
template <class Scalar>
void log_mean(const LayerRows<Scalar>& layer, Index n, double* out) {
  const double scale = static_cast<double>(layer.rows.size());
  for (Index j = 0; j < layer.end; j += kPackWidth) {
    Lanes total{};
    for (const auto* row : layer.rows) {
      total +=
          j + kPackWidth <= layer.end ? load(row + j) : load_head(row + j, layer.end - j, n - j);
    }
    store(out + j, bounded_log(total / scale));
  }
}

// Σ_j x_j (log x_j − log_mean_j) of a row whose entropy is known; NaN where that is.
template <class WideType>
double row_divergence(double entropy, const WideType* row, Index end, Index n,
                      const double* log_of_mean) {
  return -entropy - row_cross(row, end, n, log_of_mean);
}

Index padded(Index n) { return (n + 2 * kPackWidth - 1) / (2 * kPackWidth) * (2 * kPackWidth); }

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
    log_mean(rows, n, log_of_mean);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      const Index at = static_cast<Index>(h) * stride + i;
      const Index keys = rows.readers[h].end(i);
      const double row_entropy_of_head =
          entropy != nullptr ? entropy[at] : row_entropy(rows[h], keys, n, nullptr);
      out[at] = row_divergence(row_entropy_of_head, rows[h], keys, n, log_of_mean);
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
ATTNSCOPE_COMPILE(sink_removal);

}  // namespace attnscope
