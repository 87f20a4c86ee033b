// SPDX-License-Identifier: MIT
#include "kernels/information/divergence.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "bindings/layers.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// Each head's sum over its queries in float32 by groups of them, to `result`, as a mean; returns
// how many layers are not finite and how many maps are in layers that have rows of float64.
std::pair<Index, Index> fast_divergences(const Batch& batch, const SupportBatch& supports,
                                         double* result) {
  const Index heads = batch.sizes.back();
  const Index groups = (batch.queries + kDivergenceRows - 1) / kDivergenceRows;
  std::vector<double> sums(batch.count * groups, kNaN);
  const auto fell_back = std::make_unique<bool[]>(batch.count / heads * groups);
  const Index non_finite = per_layer<DivergenceWorkspace>(
      batch, supports,
      [&](auto views, auto layer_supports, Index layer, Index begin, Index end, auto& workspace) {
        fast_head_divergence(views, layer_supports, begin, end,
                             sums.data() + layer * heads * groups, fell_back.get() + layer * groups,
                             groups, workspace);
      });
  Index fallbacks = 0;
  for (Index layer = 0; layer < batch.count / heads; ++layer) {
    const bool* of_layer = fell_back.get() + layer * groups;
    if (std::find(of_layer, of_layer + groups, true) != of_layer + groups) fallbacks += heads;
  }
  for (Index index = 0; index < batch.count; ++index) {
    const double* of_groups = sums.data() + index * groups;
    const Index queries = batch.query_length(index);
    if (queries == 0) continue;
    const Index count = (queries + kDivergenceRows - 1) / kDivergenceRows;
    result[index] =
        std::accumulate(of_groups, of_groups + count, 0.0) / static_cast<double>(queries);
  }
  return {non_finite, fallbacks};
}

// Each head's divergence, the mean over its queries [..., h]. `entropy`: None, or that of every
// query [..., h, q], float64 and contiguous; in `fast` of float64 alone it is read.
py::tuple divergence(Argument heads, Argument lengths, Argument support, Argument entropy,
                     const std::string& precision) {
  const bool fast = precision_from(precision) == Precision::fast;
  const Batch batch = make_rectangles(heads, lengths);
  const SupportBatch supports = make_support(batch, support);
  const double* entropies = numbers_of(entropy, batch.count * batch.queries);
  const Result<double> result = make_result(batch.sizes, {}, kNaN);
  if (fast && batch.dtype != Dtype::float64) {
    const auto [non_finite, fallbacks] = fast_divergences(batch, supports, result.data);
    return with_fallbacks(py::make_tuple(result.tensor, non_finite), fast, fallbacks);
  }
  std::vector<double> rows(batch.count * batch.queries, kNaN);
  const Index block = batch.sizes.back() * batch.queries;
  const Index non_finite = per_layer<DivergenceWorkspace>(
      batch, supports,
      [&](auto views, auto layer_supports, Index layer, Index begin, Index end, auto& workspace) {
        const Index at = layer * block;
        head_divergence(views, layer_supports, begin, end, rows.data() + at, batch.queries,
                        workspace, entropies == nullptr ? nullptr : entropies + at);
      });
  for (Index index = 0; index < batch.count; ++index) {
    const double* row = rows.data() + index * batch.queries;
    const Index queries = batch.query_length(index);
    if (queries == 0) continue;
    result.data[index] = std::accumulate(row, row + queries, 0.0) / static_cast<double>(queries);
  }
  return with_fallbacks(py::make_tuple(result.tensor, non_finite), fast, 0);
}

// Every query's divergence before and after, whether it was excluded, and the rescaled maps or
// None.
py::tuple removal(Argument heads, Argument lengths, Argument support, Argument keys,
                  bool keep_attention, Argument sink_mass) {
  const Batch batch = make_rectangles(heads, lengths);
  const SupportBatch supports = make_support(batch, support);
  const std::vector<Index> layers(batch.sizes.begin(), batch.sizes.end() - 1);
  const FlagBatch removed = make_flags(layers, batch.n, keys);
  const Result<double> before = make_result(batch.sizes, {batch.queries}, kNaN);
  const Result<double> after = make_result(batch.sizes, {batch.queries}, kNaN);
  const Result<bool> excluded = make_result(batch.sizes, {batch.queries}, false);
  Result<double> attention;
  if (keep_attention) attention = make_result(batch.sizes, {batch.queries, batch.n}, kNaN);
  const double* learned = numbers_of(sink_mass, batch.count * batch.queries);
  const Index block = batch.sizes.back() * batch.queries;
  const Index non_finite = per_layer<DivergenceWorkspace>(
      batch, supports,
      [&](auto views, auto layer_supports, Index layer, Index begin, Index end, auto& workspace) {
        const Index at = layer * block;
        const RemovalRows out{before.data + at,
                              after.data + at,
                              excluded.data + at,
                              keep_attention ? attention.data + at * batch.n : nullptr,
                              batch.queries,
                              batch.n,
                              learned == nullptr ? nullptr : learned + at};
        sink_removal(views, layer_supports, removed.at(layer), removed.column_stride, begin, end,
                     out, workspace);
      });
  return py::make_tuple(before.tensor, after.tensor, excluded.tensor,
                        keep_attention ? attention.tensor : py::none(), non_finite);
}

}  // namespace

void bind_divergence(py::module_& module) {
  define(module, "head_divergence", &divergence, "heads", "lengths", "support", "entropy",
         precision_argument());
  define(module, "sink_removal", &removal, "heads", "lengths", "support",
         py::arg("keys").none(false), "keep_attention", "sink_mass");
}

}  // namespace attnscope
