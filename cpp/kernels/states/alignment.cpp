// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include <algorithm>
#include <cmath>

#include "matrix/row_products.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

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

// One row's pairs, as sums of differences from a first pair, so that a constant contributes exactly
// 0.
struct ShiftedSums {
  double a0;
  double c0;
  Lanes w{}, a{}, c{}, aa{}, ac{}, cc{};

  static constexpr double kOnes[8] = {1, 1, 1, 1, 1, 1, 1, 1};

  // Entries [begin, end) of a row of n, none where begin >= end, and of cosines and weights (1 or 0
  // for each key, or null), of which a whole vector may be read from any of them.
  template <class WideType>
  void add(const WideType* row, const double* cosines, const double* weights, Index begin,
           Index end, Index n) {
    Index j = begin;
    if (weights == nullptr) {
      for (; j + kPackWidth <= end; j += kPackWidth)
        add(load(row + j) - a0, load(cosines + j) - c0);
      if (j >= end) return;
      const Lanes inside = load_head(kOnes, end - j, kPackWidth);
      add((load_head(row + j, end - j, n - j) - a0) * inside,
          (load_head(cosines + j, end - j, kPackWidth) - c0) * inside);
      return;
    }
    for (; j < end; j += kPackWidth) {
      const Index left = end - j;
      const bool whole = left >= kPackWidth;
      const Lanes v = whole ? load(weights + j) : load_head(weights + j, left, kPackWidth);
      w += v;
      add(((whole ? load(row + j) : load_head(row + j, left, n - j)) - a0) * v,
          ((whole ? load(cosines + j) : load_head(cosines + j, left, kPackWidth)) - c0) * v);
    }
  }

  void add(Lanes x, Lanes y) {
    a += x;
    c += y;
    aa += x * x;
    ac += x * y;
    cc += y * y;
  }

  PairMoments moments(double count) const {
    PairMoments result;
    result.count = count;
    const double scale = 1.0 / count;
    const double sa = sum_of_lanes(a);
    const double sc = sum_of_lanes(c);
    result.mean_a = a0 + sa * scale;
    result.mean_c = c0 + sc * scale;
    result.aa = std::max(0.0, sum_of_lanes(aa) - sa * sa * scale);
    result.ac = sum_of_lanes(ac) - sa * sc * scale;
    result.cc = std::max(0.0, sum_of_lanes(cc) - sc * sc * scale);
    return result;
  }
};

// The moments of all rows' pairs together; exactly 0 where a variable is the same constant in all.
PairMoments together(const PairMoments* rows, Index count) {
  if (count == 0) return {};
  PairMoments all;
  double shift_a = 0.0;
  double shift_c = 0.0;
  for (Index r = 0; r < count; ++r) {
    all.count += rows[r].count;
    shift_a += rows[r].count * (rows[r].mean_a - rows[0].mean_a);
    shift_c += rows[r].count * (rows[r].mean_c - rows[0].mean_c);
  }
  all.mean_a = rows[0].mean_a + shift_a / all.count;
  all.mean_c = rows[0].mean_c + shift_c / all.count;
  for (Index r = 0; r < count; ++r) {
    const double da = rows[r].mean_a - all.mean_a;
    const double dc = rows[r].mean_c - all.mean_c;
    all.aa += rows[r].aa + rows[r].count * da * da;
    all.ac += rows[r].ac + rows[r].count * da * dc;
    all.cc += rows[r].cc + rows[r].count * dc * dc;
  }
  return all;
}

// packed[(i − begin)·ld + j] = u_i·u_j for queries [begin, end), and for all keys j < columns, or
// those up to i + shift where `causal`; a whole vector may be read from any of them.
void cosines_of(const double* units, const double* queries, Index width, Index begin, Index end,
                Index columns, bool causal, Index shift, double* packed, Index ld, double* tile) {
  for (Index k = 0; k < width; k += kTileDepth) {
    const Index depth = std::min(kTileDepth, width - k);
    for (Index first = 0; first < columns; first += kTileWidth) {
      pack_rows(units + first * width + k, std::min(kTileWidth, columns - first), width, depth,
                tile);
      for (Index i = begin; i < end; i += kTileRows) {
        const Index rows = std::min(kTileRows, end - i);
        if (causal && first >= i + shift + rows) continue;
        multiply_tile(queries + i * width + k, rows, width, tile, depth, k > 0,
                      packed + (i - begin) * ld + first, ld);
      }
    }
  }
}

}  // namespace

template <class Scalar>
void alignment_moments(std::span<const AlignedHead<Scalar>> heads, const double* unit_states,
                       const double* unit_queries, Index width, Index begin, Index end,
                       PairMoments* out, AlignmentWorkspace& workspace) {
  Index last_row = 0;
  Index columns = 0;
  Index shift = kNoKeyShift;
  bool causal = true;
  for (const AlignedHead<Scalar>& head : heads) {
    const Index stop = std::min<Index>(end, head.attention.rows());
    last_row = std::max(last_row, stop);
    if (stop > 0) columns = std::max(columns, head.support.end(stop - 1, head.attention.cols()));
    shift = std::max(shift, head.support.shift);
    causal = causal && head.support.kind == Support::Kind::causal;
  }
  std::fill_n(out, heads.size(), PairMoments{});
  if (begin >= last_row) return;

  const Index ld = whole_tiles(columns) + kPackWidth;
  double* tile = workspace.cosines.resize(kTileDepth * kTileWidth + (last_row - begin) * ld);
  double* packed = tile + kTileDepth * kTileWidth;
  // Where each pair of a square map is there both ways, one of the two is computed.
  const bool both_ways =
      !causal && unit_states == unit_queries && begin == 0 && last_row == columns;
  cosines_of(unit_states, unit_queries, width, begin, last_row, columns, causal || both_ways,
             both_ways ? 0 : shift, packed, ld, tile);
  if (both_ways) {
    for (Index i = 0; i < last_row; ++i) {
      for (Index j = i + 1; j < columns; ++j) packed[i * ld + j] = packed[j * ld + i];
    }
  }
  auto& weights = workspace.weights;
  auto& directed = workspace.directed;
  auto& directed_queries = workspace.directed_queries;
  directed.assign(static_cast<std::size_t>(columns + kPackWidth), 0.0);
  directed_queries.assign(static_cast<std::size_t>(last_row), 0.0);
  const auto mark_directions = [width](const double* units, Index first, Index last,
                                       std::vector<double>& marks) {
    bool every = true;
    for (Index j = first; j < last; ++j) {
      const double* unit = units + j * width;
      marks[j] = std::any_of(unit, unit + width, [](double x) { return x != 0.0; }) ? 1.0 : 0.0;
      every = every && marks[j] != 0.0;
    }
    return every;
  };
  mark_directions(unit_queries, begin, last_row, directed_queries);
  const bool every_direction = mark_directions(unit_states, 0, columns, directed);

  auto& rows = workspace.row_moments;
  rows.resize(last_row - begin);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const AlignedHead<Scalar>& head = heads[h];
    const Index queries = head.attention.rows();
    const Index n = head.attention.cols();
    const bool masked = head.support.kind == Support::Kind::mask;
    const bool weighted = masked || head.without != nullptr || !every_direction;
    if (weighted) weights.assign(directed.begin(), directed.end());
    if (head.without != nullptr) {
      for (Index j = 0; j < std::min(columns, n); ++j) {
        if (head.without[j * head.without_stride]) weights[j] = 0.0;
      }
    }
    RowReader<Scalar> reader(head.attention, head.support, workspace.rows);
    Index found = 0;
    for (Index i = begin; i < std::min(end, queries); ++i) {
      if (directed_queries[i] == 0.0) continue;
      const Index own = head.support.position(i);
      const double* cosines = packed + (i - begin) * ld;
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
      while (first < last && (first == own || (weighted && row_weights[first] == 0.0))) ++first;
      if (first == last) continue;
      ShiftedSums sums{static_cast<double>(row[first]), cosines[first]};
      sums.add(row, cosines, row_weights, first, std::min(own, last), n);
      sums.add(row, cosines, row_weights, std::max(first, own + 1), last, n);
      double count = sum_of_lanes(sums.w);
      if (!weighted)
        count = static_cast<double>(last - first - (own >= first && own < last ? 1 : 0));
      rows[found++] = sums.moments(count);
    }
    out[h] = together(rows.data(), found);
  }
}

double alignment_of(std::span<const PairMoments> parts) {
  constexpr double kRounding = 4e-15;
  PairMoments all;
  for (const PairMoments& part : parts) add(all, part);
  if (all.count < 2.0 || !(all.aa > 0.0) || !(all.cc > all.count * kRounding * kRounding)) {
    return kNaN;
  }
  return std::clamp(all.ac / std::sqrt(all.aa) / std::sqrt(all.cc), -1.0, 1.0);
}

ATTNSCOPE_COMPILE(alignment_moments);

}  // namespace attnscope
