// SPDX-License-Identifier: MIT
#include "kernels/answers/lookback.h"

#include "reader.h"

namespace attnscope::fuzz {

// Ratios are those of a loop where entries are tame, and a context that grows by nothing changes
// nothing.
template <class Scalar>
void lookback(Bytes& bytes) {
  const Index n = read_size(bytes, 24, 140);
  const Map<Scalar> map(bytes, n);
  const Index start = bytes.between(0, n - 1);
  const Index stop = bytes.between(start + 1, n);
  const LookbackAnswer answer{start, stop, bytes.between(0, n), bytes.flag()};
  Support support;
  RowScratch scratch;
  std::vector<double> ratio(static_cast<std::size_t>(n), 0.0);
  double value = 0.0;
  const bool good =
      attnscope::lookback(map.view(), 0, true, support, answer, ratio.data(), value, scratch);
  bool finite = true;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) finite = finite && std::isfinite(map(i, j));
  }
  LAW(good == finite, "a map of %ld says %d", long(n), good);
  if (!good) return;
  const Support::Kind kind = auto_support(map.view()).kind;
  LAW(support.kind == kind, "support %d of %ld, expected %d", int(support.kind), long(n),
      int(kind));
  if (!map.tame()) return;
  const Index shift = answer.predicting ? 1 : 0;
  for (Index i = 0; i < n; ++i) {
    const double found = ratio[static_cast<std::size_t>(i)];
    if (i < start - shift || i >= stop - shift) {
      LAW(std::isnan(found), "query %ld outside the answer has %g", long(i), found);
      continue;
    }
    const Index end = kind == Support::Kind::causal ? i + 1 : n;
    const Index cut = std::min(answer.context, end);
    long double before = 0.0;
    long double behind = 0.0;
    for (Index j = 0; j < end; ++j) (j < cut ? before : behind) += map(i, j);
    before /= static_cast<long double>(cut);
    behind /= static_cast<long double>(end - cut);
    if (cut == 0 || cut == end) {
      LAW(std::isnan(found), "query %ld with one part has %g", long(i), found);
    } else if (before > 1e-9L && behind > 1e-9L) {
      LAW(near(found, double(before / (before + behind)), 1e-9), "query %ld has %.17g", long(i),
          found);
    }
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::lookback)
