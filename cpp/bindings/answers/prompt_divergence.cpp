// SPDX-License-Identifier: MIT
#include "kernels/answers/prompt_divergence.h"

#include "bindings/partial.h"

namespace attnscope {
namespace {

// (per_token, total, star, each [...], non_finite) of the answers start, stop of the maps in order,
// or of one for all; NaN where a map is not finite or its answer starts below 0.
py::tuple prompt_divergence_of(Argument attention, Argument lengths, Argument support,
                               Argument answers) {
  const PartialBatch partial = make_partial(attention, lengths);
  const Batch& batch = partial.maps;
  const SupportBatch supports = make_support(batch, support);
  const AnswerList spans(answers, batch.count, 2);
  using D = PromptDivergence;
  const Fields fields(batch.sizes, {}, D{kNaN, kNaN, kNaN}, &D::per_token, &D::total, &D::star);
  const Index non_finite = per_matrix_checked_by_kernel<PromptWorkspace>(
      batch, [&](const auto& view, Index index, PromptWorkspace& workspace) {
        const std::int64_t* span = spans.of(index);
        if (span[0] < 0) return true;
        PromptDivergence divergence{};
        if (!prompt_divergence(view, partial.first_row, supports.automatic, supports.given(index),
                               span[0], span[1], divergence, workspace)) {
          return false;
        }
        fields.set(index, divergence);
        return true;
      });
  return py::make_tuple(fields.tensors(), non_finite);
}

}  // namespace

void bind_prompt_divergence(py::module_& module) {
  define(module, "prompt_divergence", &prompt_divergence_of, "attention", "lengths", "support",
         "answers");
}

}  // namespace attnscope
