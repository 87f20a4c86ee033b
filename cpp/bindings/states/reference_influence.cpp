// SPDX-License-Identifier: MIT
#include "kernels/states/reference_influence.h"

#include "bindings/layers.h"

namespace attnscope {
namespace {

py::tuple influence(Argument attention, Argument lengths, Argument support, Argument states,
                    Argument reference) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const MatrixBatch beside = make_states(batch, states);
  const FlagBatch marked = make_flags(batch.sizes, batch.n, reference);
  const Result<double> magnitude = make_result(batch.sizes, {batch.queries}, kNaN);
  const Result<double> directional = make_result(batch.sizes, {batch.queries}, kNaN);
  const Result<double> change = make_result(batch.sizes, {batch.queries}, kNaN);
  const Index non_finite = per_state<InfluenceWorkspace>(
      batch, supports, beside, false,
      [&](std::span<const Index> group, const std::vector<Support>& seen, const double* wide,
          const double*, Index begin, Index end, Index, auto& workspace) {
        visit_scalar(batch, [&](const auto* data) {
          for (const Index index : group) {
            const auto view = view_of(batch, data, index);
            const Index last = std::min<Index>(end, view.rows());
            if (begin >= last) continue;
            const Index at = index * batch.queries;
            const Influence out{magnitude.data + at, directional.data + at, change.data + at};
            reference_influence(view, seen[index], wide, beside.columns, marked.at(index),
                                marked.column_stride, begin, last, out, workspace);
          }
        });
      });
  return py::make_tuple(magnitude.tensor, directional.tensor, change.tensor, non_finite);
}

}  // namespace

void bind_reference_influence(py::module_& module) {
  define(module, "reference_influence", &influence, "attention", "lengths", "support", "states",
         py::arg("reference").none(false));
}

}  // namespace attnscope
