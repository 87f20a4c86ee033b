// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include "bindings/layers.h"

namespace attnscope {
namespace {

py::tuple alignment(Argument attention, Argument lengths, Argument support, Argument states,
                    Argument without, Argument query_states) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const MatrixBatch beside = make_states(batch, states);
  MatrixBatch of_queries;
  const MatrixBatch* own_states = nullptr;
  if (!query_states.is_none()) {
    of_queries = make_matrices(query_states, "query_states");
    if (of_queries.rows != batch.queries || of_queries.columns != beside.columns ||
        of_queries.count != batch.count) {
      throw py::value_error("query_states must hold one row per query, as wide as states");
    }
    own_states = &of_queries;
  } else if (batch.queries != batch.n) {
    throw py::value_error("maps that are not square need query_states");
  }
  const FlagBatch left_out = make_flags(batch.sizes, batch.n, without);
  const Result<double> result = make_result(batch.sizes, {}, kNaN);
  const Index rows = state_rows(batch.n);
  const Index blocks = (batch.queries + rows - 1) / rows;
  std::vector<PairMoments> parts(batch.count * blocks);
  const Index non_finite = per_state<AlignmentWorkspace>(
      batch, supports, beside, true,
      [&](std::span<const Index> group, const std::vector<Support>& seen, const double* unit,
          const double* unit_queries, Index begin, Index end, Index block, auto& workspace) {
        visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
          std::vector<AlignedHead<Scalar>> heads;
          for (const Index index : group) {
            heads.push_back({view_of(batch, data, index), seen[index], left_out.at(index),
                             left_out.column_stride});
          }
          std::vector<PairMoments> found(heads.size());
          alignment_moments(std::span<const AlignedHead<Scalar>>(heads), unit, unit_queries,
                            beside.columns, begin, end, found.data(), workspace);
          for (std::size_t h = 0; h < heads.size(); ++h)
            parts[group[h] * blocks + block] = found[h];
        });
      },
      own_states);
  for (Index index = 0; index < batch.count; ++index) {
    result.data[index] =
        alignment_of({parts.data() + index * blocks, parts.data() + (index + 1) * blocks});
  }
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_alignment(py::module_& module) {
  define(module, "geometric_semantic_alignment", &alignment, "attention", "lengths", "support",
         "states", "without", "query_states");
}

}  // namespace attnscope
