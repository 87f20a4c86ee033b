// SPDX-License-Identifier: MIT
#include "kernels/states/reference_influence.h"

#include "bindings/layers.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// States as the kernel reads them.
template <class Float>
struct InPanels {
  static constexpr bool kInRows = false;
  static Index size(Index keys, Index width) { return size_of_panels<Float>(keys, width); }
  static void put(const Float* rows, Index begin, Index end, Index keys, Index width,
                  Float* panels) {
    put_in_panels(rows, begin, end, keys, width, panels);
  }
};

// Writes the answers for all maps, with states in Float, or for those that are `wanted` where that
// is not null; marks in `unknown` the maps that Float does not hold. Returns how many matrices are
// not finite.
template <class Float>
Index measure(const Batch& batch, const SupportBatch& supports, const MatrixBatch& states,
              const FlagBatch& reference, const Influence& out, const std::vector<char>* selected,
              std::vector<char>& unknown) {
  std::vector<std::atomic<bool>> failed(batch.count);
  const Index non_finite = per_state<InfluenceWorkspace, Float, InPanels<Float>>(
      batch, supports, states, false,
      [&](std::span<const Index> group, const std::vector<Support>& supports_of_maps,
          const Float* panels, const Float*, Index begin, Index end, Index, auto& workspace) {
        visit_scalar(batch, [&](const auto* data) {
          for (const Index index : group) {
            if (selected != nullptr && (*selected)[index] == 0) continue;
            const auto view = view_of(batch, data, index);
            const Index last = std::min<Index>(end, view.rows());
            if (begin >= last) continue;
            const Index at = index * batch.queries;
            const Influence of_map{out.relative_magnitude + at, out.directional + at,
                                   out.information_change + at};
            if (!reference_influence(view, supports_of_maps[index],
                                     StatePanels<Float>{panels, batch.n, states.columns},
                                     reference.at(index), reference.column_stride, begin, last,
                                     of_map, workspace)) {
              failed[index].store(true, std::memory_order_relaxed);
            }
          }
        });
      },
      nullptr, &unknown);
  for (Index index = 0; index < batch.count; ++index) {
    if (failed[index].load()) unknown[index] = 1;
  }
  return non_finite;
}

// (magnitude, directional, change, non_finite); with precision "fast" behind them how many maps
// were measured exactly.
py::tuple influence(Argument attention, Argument lengths, Argument support, Argument states,
                    Argument reference, const std::string& precision) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const MatrixBatch beside = make_states(batch, states);
  const FlagBatch marked = make_flags(batch.sizes, batch.n, reference);
  const Result<double> magnitude = make_result(batch.sizes, {batch.queries}, kNaN);
  const Result<double> directional = make_result(batch.sizes, {batch.queries}, kNaN);
  const Result<double> change = make_result(batch.sizes, {batch.queries}, kNaN);
  const Influence out{magnitude.data, directional.data, change.data};
  std::vector<char> unknown(batch.count);
  if (precision_from(precision) == Precision::exact) {
    const Index non_finite =
        measure<double>(batch, supports, beside, marked, out, nullptr, unknown);
    return py::make_tuple(magnitude.tensor, directional.tensor, change.tensor, non_finite);
  }
  const Index non_finite = measure<float>(batch, supports, beside, marked, out, nullptr, unknown);
  const auto measured_exactly = static_cast<Index>(std::count(unknown.begin(), unknown.end(), 1));
  const std::vector<char> selected = unknown;
  if (measured_exactly > 0)
    measure<double>(batch, supports, beside, marked, out, &selected, unknown);
  return py::make_tuple(magnitude.tensor, directional.tensor, change.tensor, non_finite,
                        measured_exactly);
}

}  // namespace

void bind_reference_influence(py::module_& module) {
  module.def("reference_influence", &influence, py::arg("attention"), py::arg("lengths"),
             py::arg("support"), py::arg("states"), py::arg("reference").none(false),
             precision_argument());
}

}  // namespace attnscope
