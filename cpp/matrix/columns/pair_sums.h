// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "matrix/columns/pair_moments.h"
#include "matrix/rows.h"

// Sums over the pairs (entry of a map, cosine) of its columns, a lane for each column. Only kernel
// sources include it.
namespace attnscope {

// Sums of differences of the pairs of some columns from a first pair of each, those of column j in
// one lane, so that no lane waits for another; a constant contributes exactly 0.
class ColumnSums {
 public:
  // Numbers of memory that so many columns need.
  static constexpr Index size(Index columns) { return kFields * (columns + kPackWidth); }

  ColumnSums(double* memory, Index columns)
      : fields_(memory), stride_((columns + kPackWidth - 1) / kPackWidth * kPackWidth) {
    std::fill(memory, memory + kFields * stride_, 0.0);
  }

  // A pair of column j from which the others differ little.
  void begin_at(Index j, double entry, double cosine) {
    field(kEntry)[j] = entry;
    field(kCosine)[j] = cosine;
  }

  // Adds `count` rows of kVectors vectors from column j on; `readable` entries of a row may be
  // read, and a whole vector of cosines.
  template <Index kVectors, class Entry>
  void add(const Entry* rows, Index row_stride, const double* cosines, Index ld, Index count,
           Index j, Index readable) {
    if (count <= 0) return;
    Lanes a[kVectors], c[kVectors], aa[kVectors], ac[kVectors], cc[kVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      const Index at = j + v * kPackWidth;
      a[v] = load(field(kA) + at);
      c[v] = load(field(kC) + at);
      aa[v] = load(field(kAA) + at);
      ac[v] = load(field(kAC) + at);
      cc[v] = load(field(kCC) + at);
    }
    const double* entry = field(kEntry) + j;
    const double* cosine = field(kCosine) + j;
    const bool is_readable = readable >= kVectors * kPackWidth;
    for (Index i = 0; i < count; ++i) {
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) {
        const Index at = v * kPackWidth;
        const Entry* from = rows + i * row_stride + at;
        const Lanes read = is_readable ? load(from) : head_of(from, readable - at);
        const Lanes x = read - load(entry + at);
        const Lanes y = load(cosines + i * ld + at) - load(cosine + at);
        a[v] += x;
        c[v] += y;
        aa[v] += x * x;
        ac[v] += x * y;
        cc[v] += y * y;
      }
    }
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      const Index at = j + v * kPackWidth;
      store(field(kA) + at, a[v]);
      store(field(kC) + at, c[v]);
      store(field(kAA) + at, aa[v]);
      store(field(kAC) + at, ac[v]);
      store(field(kCC) + at, cc[v]);
    }
  }

  // The same of one row of one vector, whose `counted` lanes alone have pairs.
  template <class Entry>
  void add_some(const Entry* row, const double* cosines, LaneMask counted, Index j,
                Index readable) {
    const Lanes entry = readable >= kPackWidth ? load(row) : head_of(row, readable);
    const Lanes x = only(entry - load(field(kEntry) + j), counted);
    const Lanes y = only(load(cosines) - load(field(kCosine) + j), counted);
    add_to(field(kA) + j, x);
    add_to(field(kC) + j, y);
    add_to(field(kAA) + j, x * x);
    add_to(field(kAC) + j, x * y);
    add_to(field(kCC) + j, y * y);
  }

  // The moments of the `count` pairs of column j.
  PairMoments moments(Index j, double count) const {
    const double a = field(kA)[j];
    const double c = field(kC)[j];
    const double scale = 1.0 / count;
    PairMoments result;
    result.count = count;
    result.mean_a = field(kEntry)[j] + a * scale;
    result.mean_c = field(kCosine)[j] + c * scale;
    result.aa = std::max(0.0, field(kAA)[j] - a * a * scale);
    result.ac = field(kAC)[j] - a * c * scale;
    result.cc = std::max(0.0, field(kCC)[j] - c * c * scale);
    return result;
  }

 private:
  enum Field { kEntry, kCosine, kA, kC, kAA, kAC, kCC };
  static constexpr Index kFields = 7;

  double* field(Field which) { return fields_ + which * stride_; }
  const double* field(Field which) const { return fields_ + which * stride_; }
  template <class Entry>
  static Lanes head_of(const Entry* from, Index readable) {
    return load_head(from, std::clamp<Index>(readable, 0, kPackWidth), readable);
  }
  static Lanes only(Lanes x, LaneMask lanes) {
    return reinterpret_cast<Lanes>(reinterpret_cast<LaneMask>(x) & lanes);
  }
  static void add_to(double* sums, Lanes x) { store(sums, load(sums) + x); }

  double* fields_;
  Index stride_;
};

// Lane k where k + j is below `end`, or is not `key`.
inline LaneMask lanes_but(Index j, Index key) {
  return first_lanes(key - j) | ~first_lanes(key - j + 1);
}

// Rows [first, last) of a head's map, of which `rows` points to the first, in the block of queries
// that begins with `begin`; keys [0, columns).
template <class Entry>
struct RowGroup {
  const Entry* rows;
  Index row_stride;
  Index first;
  Index last;
  Index columns;  // that have pairs
  Index keys;     // of a row
};

// Adds the pairs of a group of rows to the columns of their keys: those before a query's own key
// where `causal`, those beside it otherwise. `cosines`: of the first row.
template <class Entry>
void add_rows(const RowGroup<Entry>& group, bool causal, Index shift, const double* cosines,
              Index ld, ColumnSums& sums) {
  // Rows [from, to), of which all lanes of the vectors have pairs.
  const auto add = [&]<Index kVectors>(Index j, Index from, Index to) {
    from = std::max(from, group.first);
    to = std::min(to, group.last);
    if (from >= to) return;
    const Index r = from - group.first;
    sums.add<kVectors>(group.rows + r * group.row_stride + j, group.row_stride,
                       cosines + r * ld + j, ld, to - from, j, group.keys - j);
  };
  const auto add_beside = [&](Index j) {
    const Index end = std::min(j + kPackWidth - shift, group.last);
    for (Index i = std::max(j - shift, group.first); i < end; ++i) {
      const Index r = i - group.first;
      sums.add_some(group.rows + r * group.row_stride + j, cosines + r * ld + j,
                    causal ? first_lanes(i + shift - j) : lanes_but(j, i + shift), j,
                    group.keys - j);
    }
  };
  constexpr Index kPair = 2 * kPackWidth;
  Index j = 0;
  for (; j + kPair <= group.columns; j += kPair) {
    const Index middle = j + kPackWidth;
    if (!causal) {
      add.template operator()<2>(j, group.first, j - shift);
      add.template operator()<1>(middle, j - shift, middle - shift);
    }
    add_beside(j);
    add_beside(middle);
    add.template operator()<1>(j, middle - shift, middle + kPackWidth - shift);
    add.template operator()<2>(j, middle + kPackWidth - shift, group.last);
  }
  for (; j < group.columns; j += kPackWidth) {
    if (!causal) add.template operator()<1>(j, group.first, j - shift);
    add_beside(j);
    add.template operator()<1>(j, j + kPackWidth - shift, group.last);
  }
}

}  // namespace attnscope
