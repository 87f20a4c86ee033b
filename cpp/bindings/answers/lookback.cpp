// SPDX-License-Identifier: MIT
#include "kernels/answers/lookback.h"

#include "bindings/partial.h"

namespace attnscope {
namespace {

// (ratio [..., rows], value [...], non_finite) of the answers start, stop, context of the maps in
// order, or of one for all; NaN where a map is not finite or its answer starts below 0.
py::tuple lookback_of(Argument attention, Argument lengths, Argument support, Argument answers,
                      bool predicting) {
  const PartialBatch partial = make_partial(attention, lengths);
  const Batch& batch = partial.maps;
  const SupportBatch supports = make_support(batch, support);
  const AnswerList spans(answers, batch.count, 3);
  const Index rows = batch.n - partial.first_row;
  const Result<double> ratios = make_result(batch.sizes, {rows}, kNaN);
  const Result<double> values = make_result(batch.sizes, {}, kNaN);
  const Index non_finite = per_matrix_checked_by_kernel<RowScratch>(
      batch, [&](const auto& view, Index index, RowScratch& scratch) {
        const std::int64_t* span = spans.of(index);
        if (span[0] < 0) return true;
        Support of_map = supports.given(index);
        return lookback(view, partial.first_row, supports.automatic, of_map,
                        {span[0], span[1], span[2], predicting}, ratios.data + index * rows,
                        values.data[index], scratch);
      });
  return py::make_tuple(ratios.tensor, values.tensor, non_finite);
}

}  // namespace

void bind_lookback(py::module_& module) {
  define(module, "lookback", &lookback_of, "attention", "lengths", "support", "answers",
         "predicting");
}

}  // namespace attnscope
