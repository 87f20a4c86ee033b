// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include "bindings/layers.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// Cosines that vary less than this are not known to 1e-5 of their spread in float32.
constexpr double kLeastSpread = 0.01;

// The moments of blocks of rows of every map, [count, blocks], with states in Float, of the maps
// that are `wanted` (null: of all). Returns how many matrices are not finite.
template <class Float>
Index moments_of(const Batch& batch, const SupportBatch& supports, const MatrixBatch& states,
                 const MatrixBatch* query_states, const FlagBatch& left_out, Index blocks,
                 const std::vector<char>* selected, std::vector<PairMoments>& parts) {
  std::vector<char> beyond(batch.count);
  return per_state<AlignmentWorkspace, Float>(
      batch, supports, states, true,
      [&](std::span<const Index> group, const std::vector<Support>& supports_of_maps,
          const Float* unit, const Float* unit_queries, Index begin, Index end, Index block,
          auto& workspace) {
        visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
          std::vector<AlignedHead<Scalar>> heads;
          std::vector<Index> indices;
          heads.reserve(group.size());
          indices.reserve(group.size());
          for (const Index index : group) {
            if (selected != nullptr && (*selected)[index] == 0) continue;
            heads.push_back({view_of(batch, data, index), supports_of_maps[index],
                             left_out.at(index), left_out.column_stride});
            indices.push_back(index);
          }
          if (heads.empty()) return;
          std::vector<PairMoments> moments(heads.size());
          alignment_moments(std::span<const AlignedHead<Scalar>>(heads), unit, unit_queries,
                            states.columns, begin, end, moments.data(), workspace);
          for (std::size_t h = 0; h < heads.size(); ++h)
            parts[indices[h] * blocks + block] = moments[h];
        });
      },
      query_states, &beyond);
}

// (correlation, non_finite); with precision "fast" behind them how many maps were measured exactly.
py::tuple alignment(Argument attention, Argument lengths, Argument support, Argument states,
                    Argument without, Argument query_states, const std::string& precision) {
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
  const auto of_map = [&](Index index) {
    return std::span<const PairMoments>(parts.data() + index * blocks, blocks);
  };
  if (precision_from(precision) == Precision::exact) {
    const Index non_finite =
        moments_of<double>(batch, supports, beside, own_states, left_out, blocks, nullptr, parts);
    for (Index index = 0; index < batch.count; ++index)
      result.data[index] = alignment_of(of_map(index));
    return py::make_tuple(result.tensor, non_finite);
  }
  const Index non_finite =
      moments_of<float>(batch, supports, beside, own_states, left_out, blocks, nullptr, parts);
  std::vector<char> unknown(batch.count);
  Index measured_exactly = 0;
  for (Index index = 0; index < batch.count; ++index) {
    const double count = pair_count(of_map(index));
    unknown[index] = count > 0.0 && !(cosine_spread(of_map(index)) >= kLeastSpread) ? 1 : 0;
    measured_exactly += unknown[index];
  }
  if (measured_exactly > 0)
    moments_of<double>(batch, supports, beside, own_states, left_out, blocks, &unknown, parts);
  for (Index index = 0; index < batch.count; ++index)
    result.data[index] = alignment_of(of_map(index));
  return py::make_tuple(result.tensor, non_finite, measured_exactly);
}

}  // namespace

void bind_alignment(py::module_& module) {
  module.def("geometric_semantic_alignment", &alignment, py::arg("attention"), py::arg("lengths"),
             py::arg("support"), py::arg("states"), py::arg("without"), py::arg("query_states"),
             precision_argument());
}

}  // namespace attnscope
