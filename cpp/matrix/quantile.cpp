// SPDX-License-Identifier: MIT
#include "matrix/quantile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "matrix/radix_sort.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

using Key = std::uint64_t;
constexpr Key kNone = std::numeric_limits<Key>::max();
constexpr int kDigitBits = 14;
constexpr std::size_t kFew = std::size_t{1} << 16;

template <class Scalar, class Visit>
void for_each_visible(const MatrixView<Scalar>& attention, const Support& support,
                      RowScratch& scratch, Visit&& visit) {
  const bool masked = support.kind == Support::Kind::mask;
  for_each_row(attention, support, scratch, [&](Index i, const Wide<Scalar>* row, Index end) {
    for (Index j = 0; j < end; ++j) {
      if (!masked || support.visible(i, j)) visit(ordered_key(static_cast<double>(row[j])));
    }
  });
}

// The entries of rank `rank` and rank + 1 (from 0), the former twice where it is the last.
using Neighbours = std::pair<double, double>;

template <class Scalar>
Neighbours order_statistics(const MatrixView<Scalar>& attention, const Support& support,
                            std::uint64_t count, std::uint64_t rank, QuantileWorkspace& workspace) {
  Key low = 0;  // every candidate lies in [low, high]
  Key high = kNone;
  std::uint64_t below = 0;  // entries before the candidates
  std::uint64_t inside = count;
  for (int shift = 64 - kDigitBits; inside > (low == 0 ? 4096 : kFew) && low != high;
       shift = std::max(0, shift - kDigitBits)) {
    auto& histogram = workspace.histogram;
    histogram.assign(((high - low) >> shift) + 1, 0);
    for_each_visible(attention, support, workspace.rows, [&](Key key) {
      if (key >= low && key <= high) ++histogram[(key - low) >> shift];
    });
    std::size_t digit = 0;
    while (below + histogram[digit] <= rank) below += histogram[digit++];
    inside = histogram[digit];
    low += static_cast<Key>(digit) << shift;
    high = low + ((Key{1} << shift) - 1);
  }
  auto& candidates = workspace.candidates;
  candidates.clear();
  const bool all_equal = low == high;
  Key above = kNone;
  for_each_visible(attention, support, workspace.rows, [&](Key key) {
    if (key > high) {
      above = std::min(above, key);
    } else if (key >= low && !all_equal) {
      candidates.push_back(key);
    }
  });
  const bool next_inside = rank + 1 < below + inside;
  Key at = low;
  Key next = next_inside ? low : above;
  if (!all_equal) {
    const auto place = candidates.begin() + static_cast<std::ptrdiff_t>(rank - below);
    std::nth_element(candidates.begin(), place, candidates.end());
    at = *place;
    if (next_inside) next = *std::min_element(place + 1, candidates.end());
  }
  return {float_of_key<double>(at), float_of_key<double>(next == kNone ? at : next)};
}

constexpr Index kSample = 256;

// The same from a sample of entries: two of them bracket the rank almost always, and one read
// counts what lies below and keeps what lies between. None where the bracket misses or holds too
// much.
template <class Scalar>
std::optional<Neighbours> bracketed(const MatrixView<Scalar>& attention, const Support& support,
                                    std::uint64_t count, std::uint64_t rank,
                                    QuantileWorkspace& workspace) {
  const Index rows = attention.rows();
  const Index n = attention.cols();
  const bool causal = support.kind == Support::Kind::causal;
  if (support.kind == Support::Kind::mask || count <= 4096) return {};
  if (causal && (support.shift != 0 || rows != n)) return {};
  auto& sample = workspace.sample;
  sample.clear();
  const double step = static_cast<double>(count) / kSample;
  for (Index k = 0; k < kSample; ++k) {
    // The visible entry of this number, counted row by row.
    const double number = (static_cast<double>(k) + 0.5) * step;
    const Index i =
        std::min(rows - 1, causal ? static_cast<Index>((std::sqrt(8.0 * number + 1.0) - 1.0) / 2.0)
                                  : static_cast<Index>(number) / n);
    const Index first = causal ? i * (i + 1) / 2 : i * n;
    const Index j = std::clamp<Index>(static_cast<Index>(number) - first, 0, support.end(i, n) - 1);
    sample.push_back(static_cast<double>(attention(i, j)));
  }
  std::sort(sample.begin(), sample.end());
  const double share = static_cast<double>(rank) / static_cast<double>(count);
  // Four standard deviations of a share in a sample of this size.
  const double width = 4.0 * std::sqrt(share * (1.0 - share) / kSample) + 1.0 / kSample;
  const auto place_of = [](double at_share) {
    return static_cast<std::size_t>(
        std::clamp<Index>(static_cast<Index>(at_share * kSample), 0, kSample - 1));
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const double low = share > width ? sample[place_of(share - width)] : -infinity;
  const double high = share + width < 1.0 ? sample[place_of(share + width)] : infinity;

  auto& between = workspace.between;
  between.resize(std::max(between.size(), kFew + static_cast<std::size_t>(n)));
  std::uint64_t below = 0;
  std::size_t inside = 0;
  RowReader<Scalar> reader(attention, support, workspace.rows);
  for (Index i = 0; i < rows; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    const Index end = reader.end(i);
    double* to = between.data();
    // Every entry is written, and the place moves on behind those that stay: no branch to
    // mispredict.
    for (Index j = 0; j < end; ++j) {
      const double x = static_cast<double>(row[j]);
      const int over = x >= low;
      below += static_cast<std::uint64_t>(1 - over);
      to[inside] = x;
      inside += static_cast<std::size_t>(over & static_cast<int>(x <= high));
    }
    if (inside > kFew) return {};
  }
  if (rank < below || rank + 1 >= below + inside) return {};
  const auto begin = between.begin();
  const auto place = begin + static_cast<std::ptrdiff_t>(rank - below);
  const auto stop = begin + static_cast<std::ptrdiff_t>(inside);
  std::nth_element(begin, place, stop);
  return Neighbours(*place, *std::min_element(place + 1, stop));
}

}  // namespace

template <class Scalar>
double visible_quantile(const MatrixView<Scalar>& attention, const Support& support, double q,
                        QuantileWorkspace& workspace) {
  const Index n = attention.cols();
  std::uint64_t count = 0;
  for (Index i = 0; i < attention.rows(); ++i) count += visible_keys(support, i, n);
  if (count == 0) return kNaN;
  const double position = q * static_cast<double>(count - 1);
  const double rank = std::floor(position);
  const auto before = static_cast<std::uint64_t>(rank);
  auto neighbours = bracketed(attention, support, count, before, workspace);
  if (!neighbours) neighbours = order_statistics(attention, support, count, before, workspace);
  const auto [at, next] = *neighbours;
  return position == rank ? at : at + (next - at) * (position - rank);
}

ATTNSCOPE_COMPILE(visible_quantile);

}  // namespace attnscope
