// SPDX-License-Identifier: MIT
#include "kernels/information/span_attention.h"

#include <pybind11/stl.h>

#include "bindings/batched.h"

namespace attnscope {
namespace {

// (the eight fields, each [...], non_finite), of the spans start, stop, start, … of the maps in order, or of one
// for all; NaN where a map is not finite or its span starts below 0.
py::tuple fields(const py::object& attention, const py::object& lengths, const py::object& support,
                 const std::vector<std::int64_t>& spans, const py::object& special) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const FlagBatch marked = make_flags(batch.sizes, batch.n, special);
  const auto given = static_cast<Index>(spans.size());
  if (given != 2 && given != 2 * batch.count) throw py::value_error("spans must be two numbers for each map");
  Result<double> results[8];
  for (auto& one : results) one = make_result(batch.sizes, {}, kNaN);
  const Index non_finite =
      per_matrix_checked_by_kernel<NoWorkspace>(batch, [&](const auto& view, Index index, NoWorkspace&) {
        const std::int64_t* ends = spans.data() + (given == 2 ? 0 : 2 * index);
        const Index start = ends[0];
        if (start < 0) return true;
        Support own = supports.given(index);
        SpanAttention found;
        if (!span_attention(view, supports.automatic, own, start, ends[1], marked.at(index),
                            marked.column_stride, found)) {
          return false;
        }
        const double values[] = {found.share,   found.uniform, found.boost,    found.diagonal,
                                 found.special, found.context, found.received, found.received_uniform};
        for (int k = 0; k < 8; ++k) results[k].data[index] = values[k];
        return true;
      });
  py::tuple tensors(8);
  for (int k = 0; k < 8; ++k) tensors[static_cast<std::size_t>(k)] = results[k].tensor;
  return py::make_tuple(tensors, non_finite);
}

}  // namespace

void bind_span_attention(py::module_& module) {
  define(module, "span_attention", &fields, "attention", "lengths", "support", "spans", "special");
}

}  // namespace attnscope
