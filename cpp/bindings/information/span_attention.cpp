// SPDX-License-Identifier: MIT
#include "kernels/information/span_attention.h"

#include <pybind11/stl.h>

#include "bindings/batched.h"

namespace attnscope {
namespace {

// (the eight fields, each [...], non_finite), of the spans start, stop, start, … of the maps in
// order, or of one for all; NaN where a map is not finite or its span starts below 0.
py::tuple span_attention_of(Argument attention, Argument lengths, Argument support,
                            const std::vector<std::int64_t>& spans, Argument special) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const FlagBatch marked = make_flags(batch.sizes, batch.n, special);
  const auto numbers = static_cast<Index>(spans.size());
  if (numbers != 2 && numbers != 2 * batch.count)
    throw py::value_error("spans must be two numbers for each map");
  using S = SpanAttention;
  const S none{kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN};
  const Fields fields(batch.sizes, {}, none, &S::share, &S::uniform, &S::boost, &S::diagonal,
                      &S::special, &S::context, &S::received, &S::received_uniform);
  const Index non_finite = per_matrix_checked_by_kernel<NoWorkspace>(
      batch, [&](const auto& view, Index index, NoWorkspace&) {
        const std::int64_t* ends = spans.data() + (numbers == 2 ? 0 : 2 * index);
        const Index start = ends[0];
        if (start < 0) return true;
        Support of_map = supports.given(index);
        SpanAttention span;
        if (!span_attention(view, supports.automatic, of_map, start, ends[1], marked.at(index),
                            marked.column_stride, span)) {
          return false;
        }
        fields.set(index, span);
        return true;
      });
  return py::make_tuple(fields.tensors(), non_finite);
}

}  // namespace

void bind_span_attention(py::module_& module) {
  define(module, "span_attention", &span_attention_of, "attention", "lengths", "support", "spans",
         "special");
}

}  // namespace attnscope
