// SPDX-License-Identifier: MIT
#include "kernels/alignment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/base/rows.h"

namespace attnscope {
namespace {

using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Chan, Golub and LeVeque 1979.
void add(PairMoments& to, const PairMoments& part) {
  if (part.count == 0.0) return;
  if (to.count == 0.0) {
    to = part;  // as it is: a mean scaled by count/count may differ from itself
    return;
  }
  const double count = to.count + part.count;
  const double da = part.mean_a - to.mean_a;
  const double dc = part.mean_c - to.mean_c;
  const double cross = to.count * part.count / count;
  to.aa += part.aa + da * da * cross;
  to.ac += part.ac + da * dc * cross;
  to.cc += part.cc + dc * dc * cross;
  to.mean_a += da * part.count / count;
  to.mean_c += dc * part.count / count;
  to.count = count;
}

// Sums of differences from a first pair, so that a constant contributes exactly 0.
struct ShiftedSums {
  double a0;
  double c0;
  Lanes w{}, a{}, c{}, aa{}, ac{}, cc{};

  static constexpr double kOnes[8] = {1, 1, 1, 1, 1, 1, 1, 1};

  // Entries [begin, end) of a row of n, and of `columns` cosines; `weights` (1 or 0 for each key)
  // may be null.
  template <class WideType>
  void add(const WideType* row, const double* cosines, const double* weights, Index begin,
           Index end, Index n, Index columns) {
    for (Index j = begin; j < end; j += kPackWidth) {
      const Index left = end - j;
      const bool whole = left >= kPackWidth;
      Lanes x = (whole ? load(row + j) : load_head(row + j, left, n - j)) - a0;
      Lanes y = (whole ? load(cosines + j) : load_head(cosines + j, left, columns - j)) - c0;
      if (weights != nullptr) {
        const Lanes v = whole ? load(weights + j) : load_head(weights + j, left, columns - j);
        w += v;
        x *= v;
        y *= v;
      } else if (!whole) {
        const Lanes inside = load_head(kOnes, left, kPackWidth);
        x *= inside;
        y *= inside;
      }
      a += x;
      c += y;
      aa += x * x;
      ac += x * y;
      cc += y * y;
    }
  }

  PairMoments moments(double count) const {
    PairMoments result;
    result.count = count;
    const double sa = sum(a);
    const double sc = sum(c);
    result.mean_a = a0 + sa / count;
    result.mean_c = c0 + sc / count;
    result.aa = std::max(0.0, sum(aa) - sa * sa / count);
    result.ac = sum(ac) - sa * sc / count;
    result.cc = std::max(0.0, sum(cc) - sc * sc / count);
    return result;
  }
};

}  // namespace

Index alignment_rows(Index n) { return std::clamp<Index>((Index{1} << 16) / n / 16 * 16, 16, 64); }

template <class Scalar>
void alignment_moments(std::span<const AlignedHead<Scalar>> heads, const double* unit_states,
                       Index width, Index begin, Index end, PairMoments* out,
                       AlignmentWorkspace& workspace) {
  // A product of another shape may round its entries otherwise, so heads that stand beside each other
  // share their cosines only where each alone would ask for the same ones.
  const auto shape = [&](const AlignedHead<Scalar>& head) {
    const Index n = head.attention.rows();
    const Index last = std::min(end, n);
    return std::pair(last, begin < last ? head.support.end(last - 1, n) : Index{0});
  };
  auto& order = workspace.order;
  order.resize(heads.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return shape(heads[a]) < shape(heads[b]);
  });
  std::pair<Index, Index> current(begin, 0);
  double* tile = nullptr;
  auto& weights = workspace.weights;
  auto& directed = workspace.directed;
  bool every_direction = true;

  for (const std::size_t h : order) {
    const AlignedHead<Scalar>& head = heads[h];
    out[h] = PairMoments{};
    const auto [end_row, columns] = shape(head);
    if (begin >= end_row) continue;
    const Eigen::Map<const RowMajor> units(unit_states, columns, width);
    const Eigen::Map<const RowMajor> queries(unit_states + begin * width, end_row - begin, width);
    if (current != std::pair(end_row, columns)) {
      current = {end_row, columns};
      tile = workspace.cosines.resize((end_row - begin) * columns);
      Eigen::Map<RowMajor>(tile, end_row - begin, columns).noalias() = queries * units.transpose();
      directed.resize(static_cast<std::size_t>(columns));
      for (Index j = 0; j < columns; ++j) directed[j] = units.row(j).isZero(0.0) ? 0.0 : 1.0;
      every_direction = std::find(directed.begin(), directed.end(), 0.0) == directed.end();
    }
    const Index n = head.attention.rows();
    const bool masked = head.support.kind == Support::Kind::mask;
    const bool weighted = masked || head.without != nullptr || !every_direction;
    weights = directed;
    if (head.without != nullptr) {
      for (Index j = 0; j < columns; ++j) {
        if (head.without[j * head.without_stride]) weights[j] = 0.0;
      }
    }
    RowReader<Scalar> reader(head.attention, head.support, workspace.rows);
    for (Index i = begin; i < end_row; ++i) {
      if (!every_direction && queries.row(i - begin).isZero(0.0)) continue;
      const double* cosines = tile + (i - begin) * columns;
      const Wide<Scalar>* row = reader.row(i);
      const Index last = reader.end(i);
      const double* row_weights = weighted ? weights.data() : nullptr;
      if (masked) {
        workspace.row_weights.assign(weights.begin(), weights.end());
        for (Index j = 0; j < last; ++j) {
          if (!head.support.visible(i, j)) workspace.row_weights[j] = 0.0;
        }
        row_weights = workspace.row_weights.data();
      }
      Index first = 0;
      while (first < last && (first == i || (weighted && row_weights[first] == 0.0))) ++first;
      if (first == last) continue;
      ShiftedSums sums{static_cast<double>(row[first]), cosines[first]};
      sums.add(row, cosines, row_weights, first, std::min(i, last), n, columns);
      sums.add(row, cosines, row_weights, std::max(first, i + 1), last, n, columns);
      double count = sum(sums.w);
      if (!weighted) count = static_cast<double>(last - first - (i >= first && i < last ? 1 : 0));
      add(out[h], sums.moments(count));
    }
  }
}

double alignment_of(std::span<const PairMoments> parts) {
  constexpr double kRounding = 4e-15;
  PairMoments all;
  for (const PairMoments& part : parts) add(all, part);
  if (all.count < 2.0 || !(all.aa > 0.0) || !(all.cc > all.count * kRounding * kRounding)) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return std::clamp(all.ac / std::sqrt(all.aa) / std::sqrt(all.cc), -1.0, 1.0);
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                          \
  template void alignment_moments<Scalar>(std::span<const AlignedHead<Scalar>>, const double*, \
                                          Index, Index, Index, PairMoments*, AlignmentWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
