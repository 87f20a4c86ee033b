// SPDX-License-Identifier: MIT
#include "linalg/mask_only.h"

#include <algorithm>
#include <cmath>

#include "linalg/score_rows.h"
#include "simd/exponential.h"
#include "simd/logarithm.h"

namespace attnscope {
namespace {

// Late rows that are added at once, and those of them whose sums run side by side.
constexpr Index kBlock = 8;
constexpr Index kAbreast = 4;

// A row whose nearest key lies so far below its largest score that the exponentials less that score
// may vanish is summed less the largest score so far.
constexpr double kFar = 128.0;

// Products of sums of exponentials stay within e^±690, those of kAbreast rows that are not so far
// among them.
constexpr double kLogRange = 690.0;

// Sums over late rows. Everything stands at position P − 1 − D of the offset D, P being m in whole
// vectors; offsets from m on hold nothing. A log-sum over the keys up to an offset is its top and
// the logarithm of its total.
struct LateSums {
  double* tops;
  double* products;  // of the totals
  double* logs;      // of the products taken so far
  double* lost;      // attention behind the offset
  Index size;
  double shared_tops = 0.0;
  double spent = 0.0;  // the largest |log| that a product may have

  void take_logs() {
    for (Index k = 0; k < size; k += kPackWidth) {
      store(logs + k, load(logs + k) + bounded_log(load(products + k)));
      store(products + k, broadcast(1.0));
    }
    spent = 0.0;
  }
  // Makes room for totals with |log| up to `range`.
  void expect(double range) {
    if (spent + range > kLogRange) take_logs();
    spent += range;
  }
};

// Rows with one top each, `size` apart.
struct LateBlock {
  double* scores;  // exponentials less the top after them
  double* totals;  // inverses after them
  double* tops;    // [kBlock]
  double* sinks;   // [kBlock], the sink's exponential less the top
  Index rows = 0;
};

// Scores of row `i` at offsets below m to `scores`, and the largest of them; they are added to
// `sum`.
template <class WideType>
double take_row(const WideType* row, Index i, Index m, Index size, double* scores, Lanes& sum) {
  const WideType* from = row + (i + 1 - size);
  Lanes top;
  if (size == m) {
    top = load(from);
  } else {
    for (Index k = 0; k < kPackWidth; ++k)
      top[k] = k < size - m ? -kInfinity : static_cast<double>(from[k]);
  }
  store(scores, top);
  Lanes total = sum + top;
  for (Index k = kPackWidth; k < size; k += kPackWidth) {
    const Lanes s = load(from + k);
    store(scores + k, s);
    total += s;
    top = larger(s, top);
  }
  sum = total;
  return largest(top);
}

// Adds kAbreast rows of a block from row `first` on.
void add_abreast(const LateBlock& block, Index first, LateSums& sums) {
  const Index size = sums.size;
  double* scores = block.scores + first * size;
  double* totals = block.totals + first * size;
  Lanes top[kAbreast], total[kAbreast], whole[kAbreast], inverse[kAbreast];
#pragma GCC unroll 4
  for (Index r = 0; r < kAbreast; ++r) {
    top[r] = broadcast(block.tops[first + r]);
    total[r] = broadcast(block.sinks[first + r]);
  }
  for (Index k = size - kPackWidth; k >= 0; k -= kPackWidth) {
    Lanes e[kAbreast];
#pragma GCC unroll 4
    for (Index r = 0; r < kAbreast; ++r) e[r] = load(scores + r * size + k) - top[r];
    bounded_exps(e);
#pragma GCC unroll 4
    for (Index r = 0; r < kAbreast; ++r) {
      store(scores + r * size + k, e[r]);
      const Lanes so_far = sums_from_behind(e[r]) + total[r];
      store(totals + r * size + k, so_far);
      total[r] = broadcast(so_far[0]);
    }
  }
#pragma GCC unroll 4
  for (Index r = 0; r < kAbreast; ++r) {
    whole[r] = total[r];
    inverse[r] = 1.0 / whole[r];
  }
  for (Index k = 0; k < size; k += kPackWidth) {
    Lanes product = load(sums.products + k), lost = load(sums.lost + k);
#pragma GCC unroll 4
    for (Index r = 0; r < kAbreast; ++r) {
      const Lanes so_far = load(totals + r * size + k);
      product *= so_far;
      lost = multiply_add(whole[r] - so_far, inverse[r], lost);
    }
    store(sums.products + k, product);
    store(sums.lost + k, lost);
  }
}

// A row that is summed less the largest score so far.
struct RisingRow {
  const double* scores;
  double* totals;
  double* tops;
};

void add_rising(const RisingRow& row, double sink, LateSums& sums) {
  double top = sink;
  double total = sink > -kInfinity ? 1.0 : 0.0;
  for (Index k = sums.size - 1; k >= 0; --k) {
    const double s = row.scores[k];
    if (s > top) {
      total = total * std::exp(top - s) + 1.0;
      top = s;
    } else {
      total += std::exp(s - top);
    }
    row.tops[k] = top;
    row.totals[k] = total;
  }
  for (Index k = 0; k < sums.size; k += kPackWidth) {
    const Lanes tops = load(row.tops + k), totals = load(row.totals + k);
    store(sums.tops + k, load(sums.tops + k) + tops);
    store(sums.products + k, load(sums.products + k) * totals);
    const Lanes lost = total - totals * bounded_exp(tops - top);
    store(sums.lost + k, multiply_add(lost, broadcast(1.0 / total), load(sums.lost + k)));
  }
}

// Sums of attention by query and position, rows `size` apart.
struct Attention {
  const std::int64_t* queries;
  Index count;
  bool body;
  double* sums;
  Index size;

  // Keys that query `q` sees, itself and the nearest.
  Index visible_keys(Index q) const { return queries[q] + (body ? 0 : 1); }

  void add(const RisingRow& row) const {
    for (Index q = 0; q < count; ++q) {
      if (visible_keys(q) == 0) continue;
      const Index last = size - visible_keys(q);
      const double top = row.tops[last];
      const Lanes share = broadcast(1.0 / row.totals[last]);
      double* to = sums + q * size;
      for (Index k = last / kPackWidth * kPackWidth; k < size; k += kPackWidth) {
        store(to + k, multiply_add(bounded_exp(load(row.scores + k) - top), share, load(to + k)));
      }
    }
  }
  // Of kBlock rows: `exponentials` and the inverses of their totals.
  void add(const double* exponentials, const double* inverses) const {
    for (Index q = 0; q < count; ++q) {
      if (visible_keys(q) == 0) continue;
      const Index last = size - visible_keys(q);
      Lanes share[kBlock];
#pragma GCC unroll 8
      for (Index r = 0; r < kBlock; ++r) share[r] = broadcast(inverses[r * size + last]);
      double* to = sums + q * size;
      for (Index k = last / kPackWidth * kPackWidth; k < size; k += kPackWidth) {
        Lanes total = load(to + k);
#pragma GCC unroll 8
        for (Index r = 0; r < kBlock; ++r)
          total = multiply_add(load(exponentials + r * size + k), share[r], total);
        store(to + k, total);
      }
    }
  }
};

}  // namespace

template <class Scalar>
bool mask_only(const MatrixView<Scalar>& scores, double sink, const std::int64_t* queries,
               Index count, bool body, double* lse, double* cut, double* share, double* attention,
               Index ld, MaskOnlyWorkspace& workspace, Ahead ahead) {
  const Index m = scores.rows() / 2;
  const Index size = whole_vectors(m);
  const auto fill = [&] {
    for (double* vector : {lse, cut, share}) std::fill(vector, vector + m, kMissing);
    for (Index q = 0; q < count; ++q)
      std::fill(attention + q * ld, attention + q * ld + m, kMissing);
  };
  RowReader<Scalar> reader(scores, kCausal, workspace.rows);
  const Index row_lines = scores.rows() * static_cast<Index>(sizeof(Scalar)) / Ahead::kLine;
  SumOfEntries<Wide<Scalar>> others;  // entries that no late row needs
  for (Index i = 0; i < m; ++i) {
    ahead.ask(row_lines);
    others.add(reader.row(i), i + 1, scores.rows());
  }
  double* buffer = workspace.sums.resize((6 + 2 * kBlock) * size);
  std::fill(buffer, buffer + 4 * size, 0.0);
  LateSums sums{buffer, buffer + size, buffer + 2 * size, buffer + 3 * size, size};
  std::fill(sums.products, sums.products + size, 1.0);
  double* const rising = buffer + 4 * size;
  double tops[kBlock], sinks[kBlock];
  LateBlock block{rising + 2 * size, rising + (2 + kBlock) * size, tops, sinks};
  const Attention attention_sums{queries, count, body, workspace.attention.resize(count * size),
                                 size};
  std::fill(attention_sums.sums, attention_sums.sums + count * size, 0.0);
  const double widest = std::log(static_cast<double>(m + 2));

  Index rows = 0;  // late rows that see themselves
  Lanes sum{};     // of their entries
  double ranges[kBlock] = {};
  const auto finish_block = [&] {
    // A row of nothing with a sink of its own adds log 1 to every sum.
    std::fill(block.scores + block.rows * size, block.scores + kBlock * size, -kInfinity);
    std::fill(tops + block.rows, tops + kBlock, 0.0);
    std::fill(sinks + block.rows, sinks + kBlock, 1.0);
    std::fill(ranges + block.rows, ranges + kBlock, 0.0);
    for (Index first = 0; first < kBlock; first += kAbreast) {
      if (first >= block.rows) break;
      sums.expect(ranges[first] + ranges[first + 1] + ranges[first + 2] + ranges[first + 3]);
      add_abreast(block, first, sums);
    }
    if (count > 0) {
      double* const end = block.totals + block.rows * size;
      for (double* at = block.totals; at < end; at += kPackWidth) store(at, 1.0 / load(at));
      std::fill(end, block.totals + kBlock * size, 0.0);
      std::fill(block.scores + block.rows * size, block.scores + kBlock * size, 0.0);
      attention_sums.add(block.scores, block.totals);
    }
    block.rows = 0;
  };
  for (Index i = m; i < 2 * m; ++i) {
    ahead.ask(row_lines);
    const auto* row = reader.row(i);
    const double nearest = static_cast<double>(row[i]);
    const bool sees_itself = nearest != -kInfinity;
    others.add(row, i + 1 - (sees_itself ? m : 0), scores.rows());
    if (!sees_itself) continue;
    ++rows;
    double* scores = block.scores + block.rows * size;
    const double top = std::max(take_row(row, i, m, size, scores, sum), sink);
    const double below = top - std::max(nearest, sink);
    if (below > kFar) {
      const RisingRow rising_row{scores, rising, rising + size};
      sums.expect(widest);
      add_rising(rising_row, sink, sums);
      attention_sums.add(rising_row);
      continue;
    }
    sums.shared_tops += top;
    tops[block.rows] = top;
    sinks[block.rows] = sink > -kInfinity ? std::exp(sink - top) : 0.0;
    ranges[block.rows] = below + widest;
    if (++block.rows == kBlock) finish_block();
  }
  bool readable = others.is_readable() && !any(~(sum < kInfinity));
  for (Index i = 0; !readable && i < 2 * m; ++i) {
    if (!is_readable(reader.row(i), i + 1)) {
      fill();
      return false;
    }
    readable = i + 1 == 2 * m;
  }
  if (rows == 0) {
    fill();
    return true;
  }
  if (block.rows > 0) finish_block();
  sums.take_logs();

  const double number = static_cast<double>(rows);
  for (Index k = 0; k < size; k += kPackWidth) {
    store(sums.logs + k, (sums.shared_tops + load(sums.tops + k) + load(sums.logs + k)) / number);
    store(sums.lost + k, smaller(broadcast(1.0), larger(Lanes{}, load(sums.lost + k) / number)));
  }
  std::reverse_copy(sums.logs + (size - m), sums.logs + size, lse);
  std::reverse_copy(sums.lost + (size - m), sums.lost + size, share);
  for (Index d = 0; d < m; ++d) cut[d] = std::max(0.0, lse[m - 1] - lse[d]);
  for (Index q = 0; q < count; ++q) {
    const double* last = attention_sums.sums + (q + 1) * size;
    const Index i = queries[q];
    const Index keys = attention_sums.visible_keys(q);
    double* to = attention + q * ld;
    std::fill(to, to + m, body && i == 0 ? kMissing : 0.0);
    for (Index d = 0; d < keys; ++d) to[i - d] = last[-1 - d] / number;
  }
  return true;
}

ATTNSCOPE_COMPILE(mask_only);

}  // namespace attnscope
