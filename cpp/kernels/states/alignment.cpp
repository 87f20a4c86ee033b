// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include <algorithm>
#include <cmath>

#include "linalg/products/block_cosines.h"
#include "matrix/columns/head_rows.h"
#include "matrix/columns/pair_sums.h"
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

PairMoments all_of(std::span<const PairMoments> parts) {
  PairMoments all;
  for (const PairMoments& part : parts) add(all, part);
  return all;
}

// One row's pairs, as sums of differences from a first pair, so that a constant contributes exactly
// 0.
struct ShiftedSums {
  double a0;
  double c0;
  Lanes w{}, a{}, c{}, aa{}, ac{}, cc{};

  // Entries [begin, end) of a row of n, none where begin >= end, and of cosines and weights (1 or 0
  // for each key), of which a whole vector may be read from any of them.
  template <class WideType>
  void add(const WideType* row, const double* cosines, const double* weights, Index begin,
           Index end, Index n) {
    for (Index j = begin; j < end; j += kPackWidth) {
      const Index left = end - j;
      const bool is_full = left >= kPackWidth;
      const Lanes v = is_full ? load(weights + j) : load_head(weights + j, left, kPackWidth);
      w += v;
      add(((is_full ? load(row + j) : load_head(row + j, left, n - j)) - a0) * v,
          ((is_full ? load(cosines + j) : load_head(cosines + j, left, kPackWidth)) - c0) * v);
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

// How the pairs of one head are added: by columns where its map and support are plain and all its
// states have a direction; and where it sees all keys, those (j, i) of keys i in the block and
// queries j before it beside those (i, j), so that their cosine is computed once.
// None of this depends on other heads.
struct HeadPlan {
  Index last;     // of its rows
  Index columns;  // of the keys whose cosines with the block it needs
  bool by_columns;
  bool mirrored;
};

// What the heads of a block need together.
struct Block {
  Index begin;
  Index end;       // of the rows of the longest head
  Index columns;   // of any head
  bool causal;     // all heads
  bool one_state;  // queries stand at keys and have their states
};

// Marks of the states that have a direction, 1 or 0.
template <class Float>
void mark_directions(const Float* units, Index width, Index first, Index last,
                     std::vector<double>& marks) {
  for (Index j = first; j < last; ++j) {
    const Float* unit = units + j * width;
    marks[j] = std::any_of(unit, unit + width, [](Float x) { return x != 0.0; }) ? 1.0 : 0.0;
  }
}

template <class Scalar>
Index seen_keys(const AlignedHead<Scalar>& head, Index last) {
  return last > 0 ? head.support.end(last - 1, head.attention.cols()) : 0;
}

template <class Scalar>
Block block_of(std::span<const AlignedHead<Scalar>> heads, bool one_state, Index begin, Index end) {
  Block block{begin, 0, 0, true, one_state};
  for (const AlignedHead<Scalar>& head : heads) {
    const Index last = std::min<Index>(end, head.attention.rows());
    block.end = std::max(block.end, last);
    block.columns = std::max(block.columns, seen_keys(head, last));
    block.causal = block.causal && head.support.kind == Support::Kind::causal;
    block.one_state = block.one_state && head.support.shift == 0;
  }
  return block;
}

template <class Scalar>
HeadPlan plan_of(const AlignedHead<Scalar>& head, const Block& block,
                 const AlignmentWorkspace& workspace) {
  const Index last = std::min<Index>(block.end, head.attention.rows());
  HeadPlan plan{last, seen_keys(head, last), false, false};
  const auto is_marked = [](double mark) { return mark != 0.0; };
  const auto keys = workspace.directed.begin();
  const auto queries = workspace.directed_queries.begin();
  plan.by_columns = block.begin < last && head.support.kind != Support::Kind::mask &&
                    head.support.positions == nullptr && head.without == nullptr &&
                    std::all_of(keys, keys + plan.columns, is_marked) &&
                    std::all_of(queries + block.begin, queries + last, is_marked);
  plan.mirrored = plan.by_columns && block.one_state && head.support.kind == Support::Kind::full &&
                  head.attention.rows() == head.attention.cols();
  if (plan.mirrored) plan.columns = last;
  return plan;
}

// Rows of cosines of a block of queries, ld apart, of which whole vectors may be read.
struct Cosines {
  double* packed;
  Index ld;
};

// Heads in a row that are added by columns in the same way, and where they are mirrored the sums of
// their pairs (j, i), for keys i of the block and queries j before it.
template <class Scalar>
struct HeadRun {
  Index first;
  PairRange range;
  bool mirrored;
  HeadRows<Scalar> rows;
  CosineSums mirrored_cosines;
  std::vector<EntrySums> mirrored_entries;  // of each head
};

template <class Scalar>
std::vector<HeadRun<Scalar>> runs_of(std::span<const AlignedHead<Scalar>> heads,
                                     const std::vector<HeadPlan>& plans, const Block& block,
                                     AlignmentWorkspace& workspace) {
  const auto count = static_cast<Index>(heads.size());
  const auto range_of = [&](Index h) {
    const Support& support = heads[h].support;
    return PairRange{block.begin, plans[h].last, plans[h].columns,
                     support.kind == Support::Kind::causal, support.shift};
  };
  const auto goes_with = [&](Index h, Index first) {
    return plans[h].by_columns && plans[h].mirrored == plans[first].mirrored &&
           range_of(h) == range_of(first);
  };
  const Index keys = block.end - block.begin;
  double* memory =
      workspace.mirrored.resize(count * (CosineSums::size(keys) + EntrySums::size(keys)));
  std::vector<HeadRun<Scalar>> runs;
  for (Index first = 0, next = 0; first < count; first = next) {
    next = first + 1;
    if (!plans[first].by_columns) continue;
    while (next < count && goes_with(next, first)) ++next;
    std::vector<MatrixView<Scalar>> maps;
    std::vector<EntrySums> entries;
    maps.reserve(next - first);
    entries.reserve(next - first);
    CosineSums cosines(memory, keys);
    memory += CosineSums::size(keys);
    for (Index h = first; h < next; ++h) {
      maps.push_back(heads[h].attention);
      entries.emplace_back(memory, keys);
      memory += EntrySums::size(keys);
    }
    runs.push_back({first, range_of(first), plans[first].mirrored,
                    HeadRows<Scalar>(std::move(maps), workspace.copies), cosines,
                    std::move(entries)});
  }
  return runs;
}

// Calls visit.template operator()<kVectors>(i) for vectors of `columns` columns.
template <class Visit>
void for_each_vector(Index columns, Visit&& visit) {
  Index i = 0;
  for (; i + 2 * kPackWidth <= columns; i += 2 * kPackWidth) visit.template operator()<2>(i);
  for (; i < columns; i += kPackWidth) visit.template operator()<1>(i);
}

// Adds the pairs of mirrored heads whose queries are the `count` keys of a panel from `first` on;
// row j of `panel`, ld apart, holds the cosines of key first + j with the block.
template <class Scalar>
void add_panel(Index first, Index count, const double* panel, Index ld, HeadRun<Scalar>& run) {
  const Index begin = run.range.first;
  const Index keys = run.range.last - begin;
  CosineSums& cosines = run.mirrored_cosines;
  for (Index i = 0; first == 0 && i < keys; ++i) cosines.begin_at(i, panel[i]);
  for_each_vector(keys,
                  [&]<Index kVectors>(Index i) { cosines.add<kVectors>(panel + i, ld, count, i); });
  for (Index j = 0; j < count; j += kRowsTogether) {
    const Index together = std::min(kRowsTogether, count - j);
    run.rows.read(first + j, together, begin, keys);
    for (Index h = 0; h < run.rows.count(); ++h) {
      const Scalar* rows = run.rows.rows(h);
      EntrySums& entries = run.mirrored_entries[h];
      for (Index i = 0; first + j == 0 && i < keys; ++i)
        entries.begin_at(i, static_cast<double>(rows[i]));
      for_each_vector(keys, [&]<Index kVectors>(Index i) {
        entries.add<kVectors>(rows + i, run.rows.stride(h), panel + j * ld + i, ld, cosines,
                              together, i, run.rows.readable(h) - i);
      });
    }
  }
}

// The cosines of a block of queries with the keys that any head needs; the pairs of mirrored heads
// are added on the way.
template <class Scalar, class Float>
Cosines cosines_of(std::span<const AlignedHead<Scalar>> heads, const Float* units,
                   const Float* queries, Index width, const Block& block,
                   std::vector<HeadRun<Scalar>>& runs, AlignmentWorkspace& workspace) {
  const Index begin = block.begin;
  const Index rows = block.end - begin;
  const Index ld =
      std::max(in_tiles<Float>(block.columns), begin + in_tiles<Float>(rows)) + kPackWidth;
  const Cosines result{workspace.cosines.resize(rows * ld), ld};
  double* packed = result.packed;
  const bool square_alone =
      block.one_state && begin == 0 && (block.causal || block.columns <= block.end);
  BlockCosines<Float> cosines(units, queries, width, begin, block.end, square_alone,
                              workspace.tiles);
  const auto add_keys = [&](Index from, Index to, bool causal, Index shift) {
    for (Index first = from; first < to; first += kPanelKeys) {
      const Index last = std::min(first + kPanelKeys, to);
      const double* panel = cosines.panel(first, last, causal, shift);
      turn(panel, cosines.ld(), rows, last - first, packed + first, ld);
      for (HeadRun<Scalar>& run : runs) {
        if (last <= begin && run.mirrored) add_panel(first, last - first, panel, cosines.ld(), run);
      }
    }
  };
  if (!block.one_state) {
    Index shift = kNoKeyShift;
    for (const AlignedHead<Scalar>& head : heads) shift = std::max(shift, head.support.shift);
    add_keys(0, block.columns, block.causal, shift);
    return result;
  }
  add_keys(0, begin, false, 0);
  cosines.square(packed + begin, ld);
  if (block.causal) return result;
  mirror(packed + begin, rows, ld);
  add_keys(block.end, block.columns, false, 0);
  return result;
}

// The cosines of a block, summed up for the pairs that a head's plan and support count.
struct CountedCosines {
  PairRange range;
  CosineSums sums;

  // The first query whose pair with key j counts, and how many do.
  Index first_query(Index j) const {
    if (range.causal) return std::max(range.first, j - range.shift + 1);
    return range.first + (range.first + range.shift == j ? 1 : 0);
  }
  double pairs(Index j) const {
    const Index behind = j - range.shift;
    const bool inside = !range.causal && range.first <= behind && behind < range.last;
    const Index from = range.causal ? first_query(j) : range.first + (inside ? 1 : 0);
    return static_cast<double>(std::max<Index>(0, range.last - from));
  }
};

CountedCosines counted_cosines(const PairRange& range, const Cosines& cosines, double* memory) {
  CountedCosines counted{range, CosineSums(memory, range.columns)};
  for (Index j = 0; j < range.columns; ++j) {
    const Index i = counted.first_query(j);
    if (i < range.last)
      counted.sums.begin_at(j, cosines.packed[(i - range.first) * cosines.ld + j]);
  }
  add_cosines(range, cosines.packed, cosines.ld, counted.sums);
  return counted;
}

// The moments of the pairs of a run of heads, to out[h] for head h of the layer.
template <class Scalar>
void measure_run(HeadRun<Scalar>& run, const Cosines& cosines, AlignmentWorkspace& workspace,
                 PairMoments* out) {
  const auto [begin, end, columns, causal, shift] = run.range;
  const CountedCosines counted =
      counted_cosines(run.range, cosines, workspace.cosine_sums.resize(CosineSums::size(columns)));
  const Index count = run.rows.count();
  double* memory = workspace.entry_sums.resize(count * EntrySums::size(columns));
  std::vector<EntrySums> sums;
  sums.reserve(count);
  for (Index h = 0; h < count; ++h) {
    sums.emplace_back(memory + h * EntrySums::size(columns), columns);
  }
  PairRange range = run.range;
  for (Index i = begin; i < end; i += kRowsTogether) {
    range.first = i;
    range.last = std::min(end, i + kRowsTogether);
    run.rows.read(i, range.last - i, 0, columns);
    for (Index h = 0; h < count; ++h) {
      const Scalar* rows = run.rows.rows(h);
      const Index stride = run.rows.stride(h);
      // Columns whose first pair may be in these rows.
      const Index from = i == begin ? 0 : std::max<Index>(0, i + shift - 1);
      const Index to = causal ? std::min(columns, range.last + shift) : i == begin ? columns : 0;
      for (Index j = from; j < to; ++j) {
        const Index first = counted.first_query(j);
        if (i <= first && first < range.last)
          sums[h].begin_at(j, static_cast<double>(rows[(first - i) * stride + j]));
      }
      add_entries(range, rows, stride, run.rows.readable(h),
                  cosines.packed + (i - begin) * cosines.ld, cosines.ld, counted.sums, sums[h]);
    }
  }
  const Index mirrored = run.mirrored ? begin : 0;  // queries before the block
  const Index capacity = columns + end - begin;
  double* of_moments = workspace.moments.resize(MomentLanes::size(capacity));
  for (Index h = 0; h < count; ++h) {
    MomentLanes moments(of_moments, capacity);
    for (Index j = 0; j < columns; j += kPackWidth) {
      Lanes counts{};
      for (Index k = 0; k < std::min(kPackWidth, columns - j); ++k)
        counts[k] = counted.pairs(j + k);
      sums[h].put_moments(counted.sums, j, counts, moments);
    }
    for (Index i = 0; mirrored > 0 && i < end - begin; i += kPackWidth) {
      const Lanes pairs =
          masked_by(first_lanes(end - begin - i), broadcast(static_cast<double>(mirrored)));
      run.mirrored_entries[h].put_moments(run.mirrored_cosines, i, pairs, moments);
    }
    out[run.first + h] = moments.together();
  }
}

// The pairs of any head, row by row.
template <class Scalar>
void add_by_rows(const AlignedHead<Scalar>& head, const Block& block, const Cosines& of_block,
                 AlignmentWorkspace& workspace, MomentLanes& moments) {
  auto& weights = workspace.weights;
  const Index n = head.attention.cols();
  const bool masked = head.support.kind == Support::Kind::mask;
  weights.assign(workspace.directed.begin(), workspace.directed.end());
  if (head.without != nullptr) {
    const auto marked = static_cast<Index>(weights.size()) - kPackWidth;
    for (Index j = 0; j < std::min(marked, n); ++j) {
      if (head.without[j * head.without_stride]) weights[j] = 0.0;
    }
  }
  RowReader<Scalar> reader(head.attention, head.support, workspace.rows);
  for (Index i = block.begin; i < std::min<Index>(block.end, head.attention.rows()); ++i) {
    if (workspace.directed_queries[i] == 0.0) continue;
    const Index self = head.support.position(i);
    const double* cosines = of_block.packed + (i - block.begin) * of_block.ld;
    const Wide<Scalar>* row = reader.row(i);
    const Index last = reader.end(i);
    const double* row_weights = weights.data();
    if (masked) {
      workspace.row_weights.assign(weights.begin(), weights.end());
      for (Index j = 0; j < last; ++j) {
        if (!head.support.visible(i, j)) workspace.row_weights[j] = 0.0;
      }
      row_weights = workspace.row_weights.data();
    }
    Index first = 0;
    while (first < last && (first == self || row_weights[first] == 0.0)) ++first;
    if (first == last) continue;
    ShiftedSums sums{static_cast<double>(row[first]), cosines[first]};
    sums.add(row, cosines, row_weights, first, std::min(self, last), n);
    sums.add(row, cosines, row_weights, std::max(first, self + 1), last, n);
    moments.put(sums.moments(sum_of_lanes(sums.w)));
  }
}

}  // namespace

template <class Scalar, class Float>
void alignment_moments(std::span<const AlignedHead<Scalar>> heads, const Float* unit_states,
                       const Float* unit_queries, Index width, Index begin, Index end,
                       PairMoments* out, AlignmentWorkspace& workspace) {
  std::fill_n(out, heads.size(), PairMoments{});
  Block block = block_of(heads, unit_states == unit_queries, begin, end);
  if (begin >= block.end) return;
  workspace.directed.assign(static_cast<std::size_t>(block.columns + kPackWidth), 0.0);
  workspace.directed_queries.assign(static_cast<std::size_t>(block.end), 0.0);
  mark_directions(unit_queries, width, begin, block.end, workspace.directed_queries);
  mark_directions(unit_states, width, Index{0}, block.columns, workspace.directed);
  const Index rows = block.end - begin;
  std::vector<HeadPlan> plans;
  plans.reserve(heads.size());
  block.columns = 0;
  for (const AlignedHead<Scalar>& head : heads) {
    plans.push_back(plan_of(head, block, workspace));
    block.columns = std::max(block.columns, plans.back().columns);
  }
  std::vector<HeadRun<Scalar>> runs = runs_of(heads, plans, block, workspace);
  const Cosines cosines =
      cosines_of(heads, unit_states, unit_queries, width, block, runs, workspace);
  for (HeadRun<Scalar>& run : runs) measure_run(run, cosines, workspace, out);
  for (std::size_t h = 0; h < heads.size(); ++h) {
    if (plans[h].by_columns) continue;
    MomentLanes moments(workspace.moments.resize(MomentLanes::size(rows)), rows);
    add_by_rows(heads[h], block, cosines, workspace, moments);
    out[h] = moments.together();
  }
}

double pair_count(std::span<const PairMoments> parts) { return all_of(parts).count; }

double cosine_spread(std::span<const PairMoments> parts) {
  const PairMoments all = all_of(parts);
  return std::sqrt(all.cc / all.count);
}

double alignment_of(std::span<const PairMoments> parts) {
  constexpr double kRounding = 4e-15;
  const PairMoments all = all_of(parts);
  if (all.count < 2.0 || !(all.aa > 0.0) || !(all.cc > all.count * kRounding * kRounding)) {
    return kNaN;
  }
  return std::clamp(all.ac / std::sqrt(all.aa) / std::sqrt(all.cc), -1.0, 1.0);
}

#define ATTNSCOPE_ALIGNMENT(Scalar)                                                    \
  template void alignment_moments(std::span<const AlignedHead<Scalar>>, const double*, \
                                  const double*, Index, Index, Index, PairMoments*,    \
                                  AlignmentWorkspace&);                                \
  template void alignment_moments(std::span<const AlignedHead<Scalar>>, const float*,  \
                                  const float*, Index, Index, Index, PairMoments*,     \
                                  AlignmentWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_ALIGNMENT)
#undef ATTNSCOPE_ALIGNMENT

}  // namespace attnscope
