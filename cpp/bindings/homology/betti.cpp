// SPDX-License-Identifier: MIT
#include "kernels/homology/betti.h"

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

py::tuple numbers(Argument attention, Argument lengths, Argument thresholds,
                  const std::string& symmetrize) {
  const Batch batch = make_batch(attention, lengths);
  const Thresholds levels = make_thresholds(batch, thresholds);
  const Symmetrize rule = symmetrize_from(symmetrize);
  const auto count = [&](const auto& view, Index index, std::int64_t* out,
                         BettiWorkspace& workspace) {
    betti_numbers(view, rule, levels.of(index), levels.size, out, workspace);
  };
  return result_per_matrix<BettiWorkspace>(batch, {levels.size, 2}, std::int64_t{-1}, count, 1);
}

}  // namespace

void bind_betti(py::module_& module) {
  define(module, "betti_numbers", &numbers, "attention", "lengths", "thresholds", "symmetrize");
}

}  // namespace attnscope
