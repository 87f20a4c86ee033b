// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include <algorithm>
#include <cmath>

#include "linalg/products/block_cosines.h"
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

// How the pairs of one head are added: by columns where its map and support are plain and all its
// states have a direction; and where it sees all keys and lies row by row, those (j, i) of keys i
// in the block and queries j before it beside those (i, j), so that their cosine is computed once.
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
                  head.attention.innerStride() == 1 &&
                  head.attention.rows() == head.attention.cols();
  if (plan.mirrored) plan.columns = last;
  return plan;
}

// Rows of cosines of a block of queries, ld apart, of which whole vectors may be read.
struct Cosines {
  double* packed;
  Index ld;
};

// Adds the pairs (j, i) of mirrored heads, for keys i of a block and queries j of a panel before
// it.
template <class Scalar>
void add_panel(std::span<const AlignedHead<Scalar>> heads, const std::vector<HeadPlan>& plans,
               Index begin, Index first, Index last, const double* panel, Index ld,
               std::vector<ColumnSums>& mirrored) {
  for (std::size_t h = 0; h < heads.size(); ++h) {
    if (!plans[h].mirrored) continue;
    const Index rows = plans[h].last - begin;
    const MatrixView<Scalar>& map = heads[h].attention;
    const Index stride = map.outerStride();
    const Scalar* from = map.data() + first * stride + begin;
    const Index readable = map.cols() - begin;
    for (Index i = 0; first == 0 && i < rows; ++i)
      mirrored[h].begin_at(i, static_cast<double>(from[i]), panel[i]);
    Index i = 0;
    for (; i + 2 * kPackWidth <= rows; i += 2 * kPackWidth)
      mirrored[h].add<2>(from + i, stride, panel + i, ld, last - first, i, readable - i);
    for (; i < rows; i += kPackWidth)
      mirrored[h].add<1>(from + i, stride, panel + i, ld, last - first, i, readable - i);
  }
}

// The cosines of a block of queries with the keys that any head needs; the pairs of mirrored heads
// are added on the way.
template <class Scalar, class Float>
Cosines cosines_of(std::span<const AlignedHead<Scalar>> heads, const Float* units,
                   const Float* queries, Index width, const Block& block,
                   const std::vector<HeadPlan>& plans, std::vector<ColumnSums>& mirrored,
                   AlignmentWorkspace& workspace) {
  const Index begin = block.begin;
  const Index rows = block.end - begin;
  const Index ld =
      std::max(in_tiles<Float>(block.columns), begin + in_tiles<Float>(rows)) + kPackWidth;
  const Cosines result{workspace.cosines.resize(rows * ld), ld};
  double* packed = result.packed;
  BlockCosines<Float> cosines(units, queries, width, begin, block.end, workspace.tiles);
  const auto add_keys = [&](Index from, Index to, bool causal, Index shift) {
    for (Index first = from; first < to; first += kPanelKeys) {
      const Index last = std::min(first + kPanelKeys, to);
      const double* panel = cosines.panel(first, last, causal, shift);
      turn(panel, cosines.ld(), rows, last - first, packed + first, ld);
      if (last <= begin && block.one_state)
        add_panel(heads, plans, begin, first, last, panel, cosines.ld(), mirrored);
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
  for (Index i = 0; i < rows; ++i) {
    for (Index j = i + 1; j < rows; ++j) packed[i * ld + begin + j] = packed[j * ld + begin + i];
  }
  add_keys(block.end, block.columns, false, 0);
  return result;
}

// The pairs of the queries of a block with the keys [0, columns) of a plain head, added by columns.
template <class Scalar>
void add_block(const AlignedHead<Scalar>& head, Index begin, Index end, Index columns,
               const double* packed, Index ld, AlignmentWorkspace& workspace,
               std::vector<PairMoments>& moments) {
  const Index shift = head.support.shift;
  const bool causal = head.support.kind == Support::Kind::causal;
  const Index n = head.attention.cols();
  // The first row whose pair with key j counts, and how many do.
  const auto first_row = [&](Index j) {
    if (causal) return std::max(begin, j - shift + 1);
    return begin + (begin + shift == j ? 1 : 0);
  };
  const auto pairs = [&](Index j) {
    const bool own = !causal && begin <= j - shift && j - shift < end;
    return causal ? end - first_row(j) : end - begin - (own ? 1 : 0);
  };
  ColumnSums sums(workspace.column_sums.resize(ColumnSums::size(columns)), columns);
  for (Index j = 0; j < columns; ++j) {
    const Index i = first_row(j);
    if (i < end)
      sums.begin_at(j, static_cast<double>(head.attention(i, j)), packed[(i - begin) * ld + j]);
  }
  const auto add = [&]<class Entry>(const Entry* rows, Index stride, Index first, Index last) {
    const RowGroup<Entry> group{rows, stride, first, last, columns, n};
    add_rows(group, causal, shift, packed + (first - begin) * ld, ld, sums);
  };
  if (head.attention.innerStride() == 1) {
    add(head.attention.data() + begin * head.attention.outerStride(), head.attention.outerStride(),
        begin, end);
  } else {
    RowReader<Scalar> reader(head.attention, head.support, workspace.rows);
    for (Index i = begin; i < end; i += RowReader<Scalar>::kPanelRows)
      add(reader.row(i), n, i, std::min(end, i + RowReader<Scalar>::kPanelRows));
  }
  for (Index j = 0; j < columns; ++j) {
    if (const Index count = pairs(j); count > 0)
      moments.push_back(sums.moments(j, static_cast<double>(count)));
  }
}

// The pairs of any head, row by row.
template <class Scalar>
void add_by_rows(const AlignedHead<Scalar>& head, const Block& block, const Cosines& of_block,
                 AlignmentWorkspace& workspace, std::vector<PairMoments>& moments) {
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
    const Index own = head.support.position(i);
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
    while (first < last && (first == own || row_weights[first] == 0.0)) ++first;
    if (first == last) continue;
    ShiftedSums sums{static_cast<double>(row[first]), cosines[first]};
    sums.add(row, cosines, row_weights, first, std::min(own, last), n);
    sums.add(row, cosines, row_weights, std::max(first, own + 1), last, n);
    moments.push_back(sums.moments(sum_of_lanes(sums.w)));
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
  const Index size = ColumnSums::size(rows);
  double* memory = workspace.mirrored.resize(static_cast<Index>(heads.size()) * size);
  std::vector<HeadPlan> plans;
  std::vector<ColumnSums> mirrored;
  plans.reserve(heads.size());
  mirrored.reserve(heads.size());
  block.columns = 0;
  for (const AlignedHead<Scalar>& head : heads) {
    plans.push_back(plan_of(head, block, workspace));
    mirrored.emplace_back(memory + static_cast<Index>(mirrored.size()) * size, rows);
    block.columns = std::max(block.columns, plans.back().columns);
  }
  const Cosines cosines =
      cosines_of(heads, unit_states, unit_queries, width, block, plans, mirrored, workspace);
  auto& moments = workspace.row_moments;
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const HeadPlan& plan = plans[h];
    moments.clear();
    if (plan.by_columns) {
      add_block(heads[h], begin, plan.last, plan.columns, cosines.packed, cosines.ld, workspace,
                moments);
    } else {
      add_by_rows(heads[h], block, cosines, workspace, moments);
    }
    for (Index i = 0; plan.mirrored && begin > 0 && i < plan.last - begin; ++i)
      moments.push_back(mirrored[h].moments(i, static_cast<double>(begin)));
    out[h] = together(moments.data(), static_cast<Index>(moments.size()));
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
