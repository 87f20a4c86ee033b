// SPDX-License-Identifier: MIT
#include "kernels/homology/betti.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple numbers(Argument attention, Argument lengths,
                  Argument thresholds, const std::string& symmetrize) {
  const Batch batch = make_batch(attention, lengths);
  const Thresholds levels = make_thresholds(batch, thresholds);
  const Symmetrize rule = symmetrize_from(symmetrize);
  const Result<std::int64_t> result = make_result(batch.sizes, {levels.size, 2}, std::int64_t{-1});
  const auto count = [&](const auto& view, Index index, BettiWorkspace& workspace) {
    betti_numbers(view, rule, levels.of(index), levels.size, result.data + index * levels.size * 2, workspace);
  };
  const Index non_finite = per_matrix<BettiWorkspace>(batch, count, 1);
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_betti(py::module_& module) {
  define(module, "betti_numbers", &numbers, "attention", "lengths", "thresholds", "symmetrize");
}

}  // namespace attnscope
