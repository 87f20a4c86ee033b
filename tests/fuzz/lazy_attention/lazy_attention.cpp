// SPDX-License-Identifier: MIT
#include "kernels/lazy_attention/lazy_attention.h"

#include <cmath>

#include "inputs.h"

namespace attnscope::fuzz {

template <class Scalar>
constexpr VectorType vector_type() {
  if (std::is_same_v<Scalar, Eigen::half>) return VectorType::float16;
  if (std::is_same_v<Scalar, Eigen::bfloat16>) return VectorType::bfloat16;
  return std::is_same_v<Scalar, float> ? VectorType::float32 : VectorType::float64;
}

template <class Scalar>
void lazy_attention_target(Bytes& bytes) {
  const Index queries = read_size(bytes, 24, 200);
  const Index keys = bytes.flag() ? queries : queries + bytes.between(0, 130);
  const Index width = bytes.between(1, 40);
  const States<Scalar> query(bytes, queries, width), key(bytes, keys, width);
  LazyHead head;
  head.query = {query.memory.get(), vector_type<Scalar>(), query.row_stride, query.column_stride};
  head.key = {key.memory.get(), vector_type<Scalar>(), key.row_stride, key.column_stride};
  head.queries = queries;
  head.keys = keys;
  head.width = width;
  head.length = bytes.flag() ? keys : bytes.between(1, keys);
  head.causal = bytes.flag();
  head.window = bytes.flag() ? 0 : bytes.between(1, keys);
  head.scaling = 0.25 * bytes.unit();
  head.softcap = bytes.flag() ? 0.0 : 30.0 * bytes.unit();
  head.slope = bytes.flag() ? 0.0 : bytes.unit();
  head.sink_logit = bytes.flag() ? -std::numeric_limits<double>::infinity() : 8.0 * bytes.unit();
  LazyRequest request;
  request.exact = bytes.flag();
  request.columns = true;
  request.threshold = 0.001 + 0.9 * bytes.unit();
  request.far = bytes.between(0, keys);
  request.firsts = {bytes.between(1, keys)};

  LazyWorkspace fresh;
  static LazyWorkspace reused;
  Output<double> entropy(queries), mass(queries), first(queries), far(queries);
  Output<double> entropy_again(queries), mass_again(queries), first_again(queries),
      far_again(queries);
  LazyRows rows, rows_again;
  rows.entropy = entropy.data();
  rows.mass = mass.data();
  rows.first = first.data();
  rows.far_mass = far.data();
  rows_again.entropy = entropy_again.data();
  rows_again.mass = mass_again.data();
  rows_again.first = first_again.data();
  rows_again.far_mass = far_again.data();
  LazyColumns columns, columns_again;
  LazyEntries entries, entries_again;
  measure_lazy_rows(head, 0, queries, request, rows, columns, entries, fresh);
  measure_lazy_rows(head, 0, queries, request, rows_again, columns_again, entries_again, reused);
  LAW(entropy.same_bits(entropy_again) && mass.same_bits(mass_again) &&
          first.same_bits(first_again) && far.same_bits(far_again),
      "scratch changes the measures of %ld queries", long(queries));
  LAW(same_bits(columns.incoming, columns_again.incoming), "scratch changes the columns");
  LAW(entries.keys == entries_again.keys, "scratch changes the entries");
  LAW(Index(entries.counts.size()) == queries, "%ld counts", long(entries.counts.size()));
  double total = 0.0;
  for (Index i = 0; i < queries; ++i) {
    LAW(mass.written(i) == !head.is_padding(i), "query %ld is written against the rule", long(i));
    if (head.is_padding(i)) continue;
    total += mass[i];
    LAW(!(mass[i] < 0.0) && !(mass[i] > 1.0 + 1e-4), "a mass of %.17g", mass[i]);
    LAW(!(entropy[i] < 0.0), "an entropy of %g", entropy[i]);
    LAW(!(first[i] > mass[i] + 1e-4) && !(far[i] > mass[i] + 1e-4), "parts above the mass %g",
        mass[i]);
    LAW(double(entries.counts[i]) * request.threshold <= 1.0 + 1e-3, "%ld entries of %g",
        long(entries.counts[i]), request.threshold);
  }
  double received = 0.0;
  for (const double incoming : columns.incoming) received += incoming;
  LAW(std::isnan(total) || std::abs(received - total) <= 1e-4 * (1.0 + total),
      "keys receive %.17g of %.17g", received, total);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::lazy_attention_target)
