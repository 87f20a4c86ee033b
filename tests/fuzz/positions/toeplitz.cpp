// SPDX-License-Identifier: MIT
#include "kernels/positions/toeplitz.h"

#include "linalg/mask_only.h"
#include "reader.h"

namespace attnscope::fuzz {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Of a map whose entries become scores: what no arithmetic can excuse. Values are held to loops in
// long double where scores are tame.
template <class Scalar>
void toeplitz(Bytes& bytes) {
  const Index n = read_size(bytes, 24, 140);
  const Map<Scalar> map(bytes, n);
  const bool late = bytes.flag();
  const bool body = bytes.flag();
  const double sink = bytes.flag() ? -kInf : 40.0 * (bytes.unit() - 0.5);
  const Index m = split_rows(n, late);
  const Index half = split_rows(n, true);
  const auto readable = [&](Index rows) {
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j <= i; ++j) {
        if (!(map(i, j) < kInf)) return false;
      }
    }
    return true;
  };
  static ToeplitzWorkspace reused;
  ToeplitzWorkspace fresh;

  Output<double> split(5 * m);
  Output<double> residual(m * m);
  Output<double> again(5 * m);
  const auto at = [&](Output<double>& out) -> ToeplitzOutputs {
    double* d = out.data();
    return {d, residual.data(), d + m, d + 2 * m, d + 3 * m, d + 4 * m, m};
  };
  const bool split_good = toeplitz_split(map.view(), late, nullptr, 0, at(split), fresh);
  LAW(split_good == readable(late ? 2 * half : n), "split of %ld says %d", long(n), split_good);
  toeplitz_split(map.view(), late, nullptr, 0, at(again), reused);
  LAW(split.same_bits(again), "scratch of an earlier matrix changes the split, n = %ld", long(n));
  for (Index k = 0; k < 5 * m; ++k) {
    LAW(split_good || std::isnan(split[k]), "a bad map has %g at %ld", split[k], long(k));
  }

  std::vector<std::int64_t> queries;
  for (Index i = 0; i < half; ++i) {
    if (bytes.byte() < 128) queries.push_back(i);
  }
  const Index count = static_cast<Index>(queries.size());
  Output<double> mask((3 + count) * half);
  Output<double> other((3 + count) * half);
  static MaskOnlyWorkspace mask_reused;
  MaskOnlyWorkspace mask_fresh;
  const auto cut = [&](Output<double>& out, MaskOnlyWorkspace& workspace) {
    double* d = out.data();
    return mask_only(map.view(), sink, queries.data(), count, body, d, d + half, d + 2 * half,
                     d + 3 * half, half, workspace);
  };
  const bool mask_good = cut(mask, mask_fresh);
  LAW(mask_good == readable(2 * half), "mask of %ld says %d", long(n), mask_good);
  cut(other, mask_reused);
  LAW(mask.same_bits(other), "scratch of an earlier matrix changes the mask, n = %ld", long(n));
  for (Index k = 0; k < (3 + count) * half; ++k) {
    LAW(mask_good || std::isnan(mask[k]), "a bad map has %g at %ld", mask[k], long(k));
  }
  if (mask_good && half > 0) {
    std::vector<Index> rows;
    bool tame = true;
    for (Index i = half; i < 2 * half; ++i) {
      if (map(i, i) > -kInf) rows.push_back(i);
      for (Index j = 0; j <= i; ++j)
        tame = tame && (map(i, j) == -kInf || std::abs(map(i, j)) < 1e6);
    }
    for (Index i = 0; tame && !rows.empty() && i < half; ++i) {
      long double lse = 0.0;
      long double kept = 0.0;
      for (const Index r : rows) {
        const auto log_sum = [&](Index last) {
          long double top = sink;
          for (Index d = 0; d <= last; ++d) top = std::max<long double>(top, map(r, r - d));
          long double sum = sink > -kInf ? std::exp(sink - top) : 0.0L;
          for (Index d = 0; d <= last; ++d) sum += std::exp(map(r, r - d) - top);
          return top + std::log(sum);
        };
        lse += log_sum(i);
        kept += std::exp(log_sum(i) - log_sum(half - 1));
      }
      const auto number = static_cast<long double>(rows.size());
      LAW(near(mask[i], double(lse / number), 1e-9 + 1e-13 * std::abs(mask[i])),
          "lse %ld of %ld: %.17g, expected %.17g", long(i), long(half), mask[i],
          double(lse / number));
      LAW(near(mask[2 * half + i], double(1 - kept / number), 1e-11),
          "share %ld of %ld: %.17g, expected %.17g", long(i), long(half), mask[2 * half + i],
          double(1 - kept / number));
      LAW(mask[half + i] >= 0.0, "cut %ld is %g", long(i), mask[half + i]);
    }
    for (Index q = 0; tame && !rows.empty() && q < count; ++q) {
      double sum = 0.0;
      for (Index j = 0; j < half; ++j) sum += mask[(3 + q) * half + j];
      const bool none = body && queries[static_cast<std::size_t>(q)] == 0;
      LAW(none ? std::isnan(sum) : sum >= 0.0 && sum <= 1.0 + 1e-12,
          "attention of row %ld sums to %g", long(q), sum);
    }
  }

  Output<double> moments(2 * n);
  Output<std::int64_t> numbers(n);
  const bool good =
      offset_variance(map.view(), moments.data(), moments.data() + n, numbers.data(), fresh);
  LAW(good == readable(n), "offsets of %ld say %d", long(n), good);
  for (Index d = 0; d < n; ++d) {
    Index seen = 0;
    for (Index i = d; i < n; ++i) seen += map(i, i - d) > -kInf ? 1 : 0;
    LAW(numbers[d] == (good ? seen : -1), "%ld entries at offset %ld, expected %ld",
        long(numbers[d]), long(d), long(seen));
    LAW(good && seen > 0 ? !map.tame() || moments[n + d] >= 0.0 : std::isnan(moments[d]),
        "variance %g of %ld entries", moments[n + d], long(seen));
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::toeplitz)
