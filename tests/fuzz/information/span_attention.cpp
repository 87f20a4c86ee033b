// SPDX-License-Identifier: MIT
#include "kernels/information/span_attention.h"

#include "reader.h"

namespace attnscope::fuzz {

// Parts of the span's rows add up to their sums, and every number is that of a loop where entries
// are tame.
template <class Scalar>
void span_attention(Bytes& bytes) {
  const Index n = read_size(bytes, 24, 140);
  const Map<Scalar> map(bytes, n);
  const Index start = bytes.between(0, n - 1);
  const Index stop = bytes.between(start + 1, n);
  const auto marks = std::make_unique<bool[]>(static_cast<std::size_t>(n));
  for (Index j = 0; j < n; ++j) marks[static_cast<std::size_t>(j)] = bytes.byte() < 60;
  const bool* special = bytes.flag() ? marks.get() : nullptr;
  Support support;
  SpanAttention found{};
  const bool good =
      attnscope::span_attention(map.view(), true, support, start, stop, special, 1, found);
  bool finite = true;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) finite = finite && std::isfinite(map(i, j));
  }
  LAW(good == finite, "a map of %ld says %d", long(n), good);
  if (!good) return;
  const Support::Kind kind = auto_support(map.view()).kind;
  LAW(support.kind == kind, "support %d of %ld, expected %d", int(support.kind), long(n),
      int(kind));
  LAW(found.uniform > 0.0 && found.uniform <= 1.0, "uniform %g", found.uniform);
  const bool last = kind == Support::Kind::causal ? stop == n : stop - start == n;
  LAW(std::isnan(found.received_uniform) == last, "received %g of [%ld, %ld) of %ld",
      found.received, long(start), long(stop), long(n));
  if (!map.tame()) return;
  long double total = 0.0;
  long double own = 0.0;
  double size = 0.0;
  for (Index i = start; i < stop; ++i) {
    for (Index j = 0; j < n; ++j) {
      const auto x = static_cast<long double>(map(i, j));
      total += x;
      size += std::abs(map(i, j));
      if (start <= j && j < stop) own += x;
    }
  }
  const auto m = static_cast<long double>(stop - start);
  const double tolerance = 1e-13 * size;
  LAW(near(found.share, double(own / m), tolerance), "share %.17g, expected %.17g", found.share,
      double(own / m));
  const double sum = found.share + found.special + found.context;
  LAW(near(sum, double(total / m), tolerance), "parts add up to %.17g, expected %.17g", sum,
      double(total / m));
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::span_attention)
