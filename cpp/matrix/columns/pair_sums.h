// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "matrix/columns/moment_lanes.h"
#include "matrix/rows.h"

// Sums over the pairs (entry of a map, cosine) of its columns, a lane for each column. Those of the
// cosines alone are the same for all heads that see the same pairs. Only kernel sources include it.
namespace attnscope {

// Rows that are added to all columns before the next ones, few enough that a line of memory which
// two groups of columns share is still in the first-level cache when the second one reads it.
inline constexpr Index kRowsTogether = 16;

// Fields of numbers, one for each column, in memory of the caller's.
template <Index kFields>
class ColumnFields {
 public:
  static constexpr Index size(Index columns) { return kFields * (columns + kPackWidth); }

  ColumnFields(double* memory, Index columns)
      : fields_(memory), stride_((columns + kPackWidth - 1) / kPackWidth * kPackWidth) {
    std::fill(memory, memory + kFields * stride_, 0.0);
  }

  double* at(Index field, Index j) { return fields_ + field * stride_ + j; }
  const double* at(Index field, Index j) const { return fields_ + field * stride_ + j; }

 private:
  double* fields_;
  Index stride_;
};

inline Lanes masked_by(LaneMask lanes, Lanes x) {
  return reinterpret_cast<Lanes>(reinterpret_cast<LaneMask>(x) & lanes);
}

// Sums of the cosines of each column as differences from a first one, those of column j in one
// lane, so that no lane waits for another; a constant contributes exactly 0.
class CosineSums {
 public:
  static constexpr Index size(Index columns) { return ColumnFields<3>::size(columns); }

  CosineSums(double* memory, Index columns) : fields_(memory, columns) {}

  void begin_at(Index j, double cosine) { *fields_.at(kFirst, j) = cosine; }

  // Adds `count` rows, ld apart, of kVectors vectors from column j on.
  template <Index kVectors>
  void add(const double* cosines, Index ld, Index count, Index j) {
    Lanes c[kVectors], cc[kVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      c[v] = load(fields_.at(kC, j + v * kPackWidth));
      cc[v] = load(fields_.at(kCC, j + v * kPackWidth));
    }
    for (Index i = 0; i < count; ++i) {
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) {
        const Lanes y = load(cosines + i * ld + v * kPackWidth) - load(first(j + v * kPackWidth));
        c[v] += y;
        cc[v] += y * y;
      }
    }
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      store(fields_.at(kC, j + v * kPackWidth), c[v]);
      store(fields_.at(kCC, j + v * kPackWidth), cc[v]);
    }
  }

  // The same of one vector, of which in row i the lanes counted(i) alone have pairs.
  template <class Counted>
  void add_some(const double* cosines, Index ld, Index count, Index j, Counted&& counted) {
    const Lanes cosine = load(first(j));
    Lanes c = load(fields_.at(kC, j)), cc = load(fields_.at(kCC, j));
    for (Index i = 0; i < count; ++i) {
      const Lanes y = masked_by(counted(i), load(cosines + i * ld) - cosine);
      c += y;
      cc += y * y;
    }
    store(fields_.at(kC, j), c);
    store(fields_.at(kCC, j), cc);
  }

  const double* first(Index j) const { return fields_.at(kFirst, j); }
  Lanes sum(Index j) const { return load(fields_.at(kC, j)); }
  Lanes squares(Index j) const { return load(fields_.at(kCC, j)); }

 private:
  enum Field { kFirst, kC, kCC };
  ColumnFields<3> fields_;
};

// The same of the entries of a map, and of their products with the cosines beside them.
class EntrySums {
 public:
  static constexpr Index size(Index columns) { return ColumnFields<4>::size(columns); }

  EntrySums(double* memory, Index columns) : fields_(memory, columns) {}

  void begin_at(Index j, double entry) { *fields_.at(kFirst, j) = entry; }

  // Adds `count` rows of kVectors vectors from column j on; `readable` entries of a row may be
  // read, and a whole vector of cosines.
  template <Index kVectors, class Entry>
  void add(const Entry* rows, Index row_stride, const double* cosines, Index ld,
           const CosineSums& of_cosines, Index count, Index j, Index readable) {
    Lanes a[kVectors], aa[kVectors], ac[kVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      const Index at = j + v * kPackWidth;
      a[v] = load(fields_.at(kA, at));
      aa[v] = load(fields_.at(kAA, at));
      ac[v] = load(fields_.at(kAC, at));
    }
    const double* const entry = fields_.at(kFirst, j);
    const double* const cosine = of_cosines.first(j);
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
        aa[v] += x * x;
        ac[v] += x * y;
      }
    }
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) {
      const Index at = j + v * kPackWidth;
      store(fields_.at(kA, at), a[v]);
      store(fields_.at(kAA, at), aa[v]);
      store(fields_.at(kAC, at), ac[v]);
    }
  }

  // The same of one vector, of which in row i the lanes counted(i) alone have pairs.
  template <class Entry, class Counted>
  void add_some(const Entry* rows, Index row_stride, const double* cosines, Index ld,
                const CosineSums& of_cosines, Index count, Index j, Index readable,
                Counted&& counted) {
    const Lanes entry = load(fields_.at(kFirst, j));
    const Lanes cosine = load(of_cosines.first(j));
    Lanes a = load(fields_.at(kA, j)), aa = load(fields_.at(kAA, j)), ac = load(fields_.at(kAC, j));
    for (Index i = 0; i < count; ++i) {
      const Entry* from = rows + i * row_stride;
      const Lanes read = readable >= kPackWidth ? load(from) : head_of(from, readable);
      const LaneMask lanes = counted(i);
      const Lanes x = masked_by(lanes, read - entry);
      const Lanes y = masked_by(lanes, load(cosines + i * ld) - cosine);
      a += x;
      aa += x * x;
      ac += x * y;
    }
    store(fields_.at(kA, j), a);
    store(fields_.at(kAA, j), aa);
    store(fields_.at(kAC, j), ac);
  }

  // The moments of `counts` pairs of the columns from j on, a vector of them.
  void put_moments(const CosineSums& cosines, Index j, Lanes counts, MomentLanes& out) const {
    // Lanes behind the last column may hold anything.
    const LaneMask counted = counts > 0.0;
    const Lanes scale = 1.0 / (counted ? counts : broadcast(1.0));
    const Lanes a = masked_by(counted, load(fields_.at(kA, j)));
    const Lanes c = masked_by(counted, cosines.sum(j));
    out.put(counts, masked_by(counted, load(fields_.at(kFirst, j)) + a * scale),
            masked_by(counted, load(cosines.first(j)) + c * scale),
            masked_by(counted, larger(Lanes{}, load(fields_.at(kAA, j)) - a * a * scale)),
            masked_by(counted, load(fields_.at(kAC, j)) - a * c * scale),
            masked_by(counted, larger(Lanes{}, cosines.squares(j) - c * c * scale)));
  }

 private:
  enum Field { kFirst, kA, kAA, kAC };

  template <class Entry>
  static Lanes head_of(const Entry* from, Index readable) {
    return load_head(from, std::clamp<Index>(readable, 0, kPackWidth), readable);
  }

  ColumnFields<4> fields_;
};

// Lane k where k + j is below `end`, or is not `key`.
inline LaneMask lanes_but(Index j, Index key) {
  return first_lanes(key - j) | ~first_lanes(key - j + 1);
}

// Queries [first, last), keys [0, columns), and which of their pairs count: those with keys before
// a query's own, which is `shift` behind it, where `causal`, those beside it otherwise.
struct PairRange {
  Index first;
  Index last;
  Index columns;
  bool causal;
  Index shift;

  bool operator==(const PairRange&) const = default;

  // Which of the keys from j on have a pair with query i, which stands among them.
  LaneMask counted(Index j, Index i) const {
    return causal ? first_lanes(i + shift - j) : lanes_but(j, i + shift);
  }
};

// Calls add<kVectors>(j, from, to) for keys from j on and rows [from, to) of the range, of which
// all lanes have pairs, and add_some(j, from, to) where only those of `counted` have.
template <class Add, class AddSome>
void visit_pairs(const PairRange& range, Add&& add, AddSome&& add_some) {
  const auto [first, last, columns, causal, shift] = range;
  const auto add_all = [&, first = first, last = last]<Index kVectors>(Index j, Index from,
                                                                       Index to) {
    from = std::max(from, first);
    to = std::min(to, last);
    if (from < to) add.template operator()<kVectors>(j, from, to);
  };
  const auto add_beside = [&, first = first, last = last, shift = shift](Index j) {
    const Index from = std::max(j - shift, first);
    const Index to = std::min(j + kPackWidth - shift, last);
    if (from < to) add_some(j, from, to);
  };
  constexpr Index kPair = 2 * kPackWidth;
  Index j = 0;
  for (; j + kPair <= columns; j += kPair) {
    const Index middle = j + kPackWidth;
    if (!causal) {
      add_all.template operator()<2>(j, first, j - shift);
      add_all.template operator()<1>(middle, j - shift, middle - shift);
    }
    add_beside(j);
    add_beside(middle);
    add_all.template operator()<1>(j, middle - shift, middle + kPackWidth - shift);
    add_all.template operator()<2>(j, middle + kPackWidth - shift, last);
  }
  for (; j < columns; j += kPackWidth) {
    if (!causal) add_all.template operator()<1>(j, first, j - shift);
    add_beside(j);
    add_all.template operator()<1>(j, j + kPackWidth - shift, last);
  }
}

// Adds the cosines of a range of pairs; `cosines`: of its first row.
inline void add_cosines(const PairRange& range, const double* cosines, Index ld, CosineSums& sums) {
  const auto row = [&](Index i) { return cosines + (i - range.first) * ld; };
  visit_pairs(
      range,
      [&]<Index kVectors>(Index j, Index from, Index to) {
        sums.add<kVectors>(row(from) + j, ld, to - from, j);
      },
      [&](Index j, Index from, Index to) {
        sums.add_some(row(from) + j, ld, to - from, j,
                      [&](Index i) { return range.counted(j, from + i); });
      });
}

// Adds the entries of a range of pairs beside their cosines; `rows`: its first row, of `keys`
// entries.
template <class Entry>
void add_entries(const PairRange& range, const Entry* rows, Index row_stride, Index keys,
                 const double* cosines, Index ld, const CosineSums& of_cosines, EntrySums& sums) {
  visit_pairs(
      range,
      [&]<Index kVectors>(Index j, Index from, Index to) {
        const Index r = from - range.first;
        sums.add<kVectors>(rows + r * row_stride + j, row_stride, cosines + r * ld + j, ld,
                           of_cosines, to - from, j, keys - j);
      },
      [&](Index j, Index from, Index to) {
        const Index r = from - range.first;
        sums.add_some(rows + r * row_stride + j, row_stride, cosines + r * ld + j, ld, of_cosines,
                      to - from, j, keys - j, [&](Index i) { return range.counted(j, from + i); });
      });
}

}  // namespace attnscope
