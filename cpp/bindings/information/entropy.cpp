// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include "bindings/batched.h"

namespace attnscope {
namespace {

py::tuple entropy(Argument attention, Argument lengths, Argument support, bool normalized) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> result = make_result(batch.sizes, {batch.queries}, kNaN);
  const Index non_finite = per_matrix_checked_by_kernel<RowScratch>(
      batch, [&](const auto& view, Index index, auto& scratch) {
        Support own = supports.given(index);
        return attention_entropy(view, supports.automatic, own, normalized,
                                 result.data + index * batch.queries, scratch);
      });
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_entropy(py::module_& module) {
  define(module, "attention_entropy", &entropy, "attention", "lengths", "support", "normalized");
}

}  // namespace attnscope
