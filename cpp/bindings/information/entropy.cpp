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
  const Index non_finite = per_matrix_checked_by_kernel<RowScratch>(
      batch, [&](const auto& view, Index index, auto& scratch) {
        Support own = supports.given(index);
        return attention_entropy(view, supports.automatic, own, normalized,
                                 result.data + index * batch.queries, scratch, fast);
      });
  return with_fallbacks(py::make_tuple(result.tensor, non_finite), fast, 0);
}

}  // namespace

void bind_entropy(py::module_& module) {
  define(module, "attention_entropy", &entropy, "attention", "lengths", "support", "normalized",
         precision_argument());
}

}  // namespace attnscope
