// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple entropy(Argument attention, Argument lengths, Argument support, bool normalized,
                  const std::string& precision) {
  const bool fast = precision_from(precision) == Precision::fast;
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> result = make_result(batch.sizes, {batch.queries}, kNaN);
  const Index non_finite = per_row_part<RowScratch>(
      batch, supports, kBlockEntriesOfLogarithms,
      [&](const auto& rows, Index index, Index begin, Support& support, RowScratch& scratch) {
        return attention_entropy(rows, supports.automatic, support, false,
                                 result.data + index * batch.queries + begin, scratch, fast);
      },
      [&](Index index, bool finite, const Support& support) {
        double* entropies = result.data + index * batch.queries;
        const Index queries = batch.query_length(index);
        if (!finite) {
          std::fill(entropies, entropies + queries, kNaN);
        } else if (normalized) {
          normalize_entropies(support, queries, batch.length(index), entropies);
        }
      });
  return with_fallbacks(py::make_tuple(result.tensor, non_finite), fast, 0);
}

}  // namespace

void bind_entropy(py::module_& module) {
  define(module, "attention_entropy", &entropy, "attention", "lengths", "support", "normalized",
         precision_argument());
}

}  // namespace attnscope
