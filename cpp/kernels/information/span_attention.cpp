// SPDX-License-Identifier: MIT
#include "kernels/information/span_attention.h"

#include <limits>

#include "matrix/matrix_reading.h"
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

template <class Scalar>
void add(const MatrixView<Scalar>& attention, const Support& support, Index i, Index begin, Index end,
         const bool* special, Index special_stride, Outside& sums) {
  if (special == nullptr) {
    for (Index j = begin; j < end; ++j) sums.context += entry(attention, support, i, j);
    return;
  }
  for (Index j = begin; j < end; ++j) {
    const double x = entry(attention, support, i, j);
    const bool marked = special[j * special_stride];
    sums.special += marked ? x : 0.0;
    sums.context += marked ? 0.0 : x;
  }
}

// What query i gives the keys [start, stop), and how many of them it sees.
struct Inside {
  double mass = 0.0;
  Index seen = 0;
};

template <class Scalar>
Inside inside(const MatrixView<Scalar>& attention, const Support& support, Index i, Index start, Index stop) {
  Inside found;
  for (Index j = start; j < stop; ++j) {
    found.mass += entry(attention, support, i, j);
    found.seen += support.visible(i, j) ? 1 : 0;
  }
  return found;
}

}  // namespace

template <class Scalar>
bool span_attention(const MatrixView<Scalar>& attention, bool find_support, Support& support, Index start,
                    Index stop, const bool* special, Index special_stride, SpanAttention& out) {
  if (find_support) {
    const MatrixReading reading = read_once(attention);
    if (!reading.finite) return false;
    support = Support{};
    support.kind = reading.causal ? Support::Kind::causal : Support::Kind::full;
  } else if (!all_finite(attention)) {
    return false;
  }
  const Index n = attention.rows();
  const auto uniform_share = [&](Index i, Index seen) {
    return seen == 0 ? 0.0 : static_cast<double>(seen) / static_cast<double>(visible_keys(support, i, n));
  };
  out = {};
  Outside rest;
  for (Index i = start; i < stop; ++i) {
    const Inside own = inside(attention, support, i, start, stop);
    out.share += own.mass;
    out.uniform += uniform_share(i, own.seen);
    out.diagonal += entry(attention, support, i, i);
    add(attention, support, i, 0, start, special, special_stride, rest);
    add(attention, support, i, stop, n, special, special_stride, rest);
  }
  Index queries = 0;
  for (Index i = 0; i < n; ++i) {
    if (i == start) i = stop;
    if (i >= n) break;
    const Inside given = inside(attention, support, i, start, stop);
    if (given.seen == 0) continue;
    ++queries;
    out.received += given.mass;
    out.received_uniform += uniform_share(i, given.seen);
  }
  const auto m = static_cast<double>(stop - start);
  const double scale = queries == 0 ? std::numeric_limits<double>::quiet_NaN() : static_cast<double>(queries);
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

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                            \
  template bool span_attention<Scalar>(const MatrixView<Scalar>&, bool, Support&, Index, Index, \
                                       const bool*, Index, SpanAttention&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
