// SPDX-License-Identifier: MIT
#include "kernels/information/span_attention.h"

#include <algorithm>

#include "matrix/matrix_view.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// Sums of one row over [begin, end): of marked keys and of all others.
struct Outside {
  double special = 0.0;
  double context = 0.0;
};

// Entry (i, j) where it is visible.
template <class Scalar>
double entry(const MatrixView<Scalar>& attention, const Support& support, Index i, Index j) {
  return support.visible(i, j) ? static_cast<double>(attention(i, j)) : 0.0;
}

// Strands of a sum, which keep several additions in flight.
constexpr Index kStrands = 4;

// Adds row i over the visible keys [begin, end).
template <class Scalar>
void add(const MatrixView<Scalar>& attention, const Support& support, Index i, Index begin,
         Index end, const bool* special, Index special_stride, Outside& sums) {
  double to_special[kStrands] = {}, to_context[kStrands] = {};
  end = std::min(end, support.end(i, attention.cols()));
  const bool masked = support.kind == Support::Kind::mask;
  for (Index j = begin; j < end; ++j) {
    const double x =
        masked ? entry(attention, support, i, j) : static_cast<double>(attention(i, j));
    const bool marked = special != nullptr && special[j * special_stride];
    to_special[j % kStrands] += marked ? x : 0.0;
    to_context[j % kStrands] += marked ? 0.0 : x;
  }
  for (Index k = 0; k < kStrands; ++k) {
    sums.special += to_special[k];
    sums.context += to_context[k];
  }
}

// What query i gives the keys [start, stop), and how many of them it sees.
struct Inside {
  double mass = 0.0;
  Index visible = 0;
};

template <class Scalar>
Inside inside(const MatrixView<Scalar>& attention, const Support& support, Index i, Index start,
              Index stop) {
  Inside of_row;
  for (Index j = start; j < stop; ++j) {
    of_row.mass += entry(attention, support, i, j);
    of_row.visible += support.visible(i, j) ? 1 : 0;
  }
  return of_row;
}

// Rows that are looked at together: few enough to stay in the cache until the span's columns are
// read.
constexpr Index kBand = 16;

// Reads the whole matrix as `read_lines` does and adds up what the queries outside the span give
// it. Where the matrix is known to be causal, those before it see none of it.
template <class Scalar>
double read_and_add(const MatrixView<Scalar>& attention, const Support& support, Index start,
                    Index stop, bool causal, MatrixReading& reading) {
  const Index queries = attention.rows();
  const bool by_rows = lines_are_rows(attention);
  const Index lines = by_rows ? queries : attention.cols();
  double received = 0.0;
  const auto add_rows = [&](Index begin, Index end) {
    for (Index i = begin; i < end; ++i) {
      const Index place = support.position(i);
      if (place < stop && (causal || start <= place)) continue;
      for (Index j = start; j < stop; ++j) received += static_cast<double>(attention(i, j));
    }
  };
  for (Index begin = 0; begin < lines && reading.finite; begin += kBand) {
    const Index end = std::min(lines, begin + kBand);
    read_lines(attention, begin, end, reading, support.shift);
    if (by_rows) add_rows(begin, end);
  }
  if (!by_rows && reading.finite) add_rows(0, queries);
  return received;
}

}  // namespace

template <class Scalar>
bool span_attention(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                    Index start, Index stop, const bool* special, Index special_stride,
                    SpanAttention& out) {
  const Index queries = attention.rows();
  const Index n = attention.cols();
  const bool masked = !find_support && support.kind == Support::Kind::mask;
  MatrixReading reading{true, find_support && n >= 2};
  double received = 0.0;
  if (masked) {
    if (!all_finite(attention)) return false;
  } else {
    const bool causal = !find_support && support.kind == Support::Kind::causal;
    received = read_and_add(attention, support, start, stop, causal, reading);
    if (!reading.finite) return false;
  }
  if (find_support) support.kind = reading.causal ? Support::Kind::causal : Support::Kind::full;
  const auto uniform_share = [&](Index i, Index visible) {
    return visible == 0
               ? 0.0
               : static_cast<double>(visible) / static_cast<double>(visible_keys(support, i, n));
  };
  out = {};
  out.received = received;
  Outside rest;
  Index inner_queries = 0;
  const auto in_span = [&](Index place) { return start <= place && place < stop; };
  for (Index i = 0; i < queries; ++i) {
    const Index place = support.position(i);
    if (!in_span(place)) continue;
    ++inner_queries;
    const Inside of_query = inside(attention, support, i, start, stop);
    out.share += of_query.mass;
    out.uniform += uniform_share(i, of_query.visible);
    out.diagonal += entry(attention, support, i, place);
    add(attention, support, i, 0, start, special, special_stride, rest);
    add(attention, support, i, stop, n, special, special_stride, rest);
  }
  Index outer_queries = 0;
  for (Index i = 0; i < queries; ++i) {
    const Index place = support.position(i);
    if (in_span(place) || (support.kind == Support::Kind::causal && place < stop)) continue;
    const Inside of_span =
        masked ? inside(attention, support, i, start, stop) : Inside{0.0, stop - start};
    if (of_span.visible == 0) continue;
    ++outer_queries;
    out.received += of_span.mass;
    out.received_uniform += uniform_share(i, of_span.visible);
  }
  const double m = inner_queries == 0 ? kNaN : static_cast<double>(inner_queries);
  const double scale = outer_queries == 0 ? kNaN : static_cast<double>(outer_queries);
  out.share /= m;
  out.uniform /= m;
  out.boost = out.share / out.uniform;
  out.diagonal /= m;
  out.special = rest.special / m;
  out.context = rest.context / m;
  out.received /= scale;
  out.received_uniform /= scale;
  return true;
}

ATTNSCOPE_COMPILE(span_attention);

}  // namespace attnscope
