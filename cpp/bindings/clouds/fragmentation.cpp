// SPDX-License-Identifier: MIT
#include "kernels/clouds/fragmentation.h"

#include "bindings/clouds/subsets.h"

namespace attnscope {
namespace {

py::tuple fragments(Argument distances, Argument lengths, Argument subsets, Index subset_count) {
  const Batch batch = make_batch(distances, lengths);
  const Subsets chosen = make_subsets(subsets, subset_count, batch.n);
  const Result<double> value = make_result(leading_of(batch, chosen), {}, kNaN);
  const Index items = batch.count * chosen.count;
  std::vector<FragmentationWorkspace> workers(worker_count(items));
  std::vector<char> finite(batch.count);
  for (Index index = 0; index < batch.count; ++index) {
    visit_matrix(batch, index,
                 [&](const auto& view, Index at) { finite[at] = none_is_nan(view) ? 1 : 0; });
  }
  run_blocks(items, 1, [&](Index begin, Index end, int worker) {
    for (Index item = begin; item < end; ++item) {
      const Index index = item % batch.count;
      if (finite[index] == 0) continue;
      visit_matrix(batch, index, [&](const auto& view, Index) {
        value.data[item] = fragmentation(view, chosen.of(item / batch.count), workers[worker]);
      });
    }
  });
  return py::make_tuple(value.tensor, std::count(finite.begin(), finite.end(), 0));
}

py::tuple components(Argument distances, Argument lengths, Argument scales, Index scale_count,
                     Index min_size) {
  const Batch batch = make_batch(distances, lengths);
  const double* sizes = numbers_of(scales, scale_count);
  using C = Components;
  const Fields fields(batch.sizes, {scale_count}, C{-1, -1, -1, kNaN}, &C::components, &C::clusters,
                      &C::singletons, &C::largest);
  const Index non_finite = per_matrix_checked_by_kernel<FragmentationWorkspace>(
      batch, [&](const auto& view, Index index, FragmentationWorkspace& workspace) {
        if (!none_is_nan(view)) return false;
        std::vector<C> components(scale_count);
        cloud_components(view, sizes, scale_count, min_size, components.data(), workspace);
        for (Index s = 0; s < scale_count; ++s) fields.set(index * scale_count + s, components[s]);
        return true;
      });
  return fields.tensors() + py::make_tuple(non_finite);
}

}  // namespace

void bind_fragmentation(py::module_& module) {
  define(module, "fragmentation", &fragments, "distances", "lengths", "subsets", "subset_count");
  define(module, "cloud_components", &components, "distances", "lengths", "scales", "scale_count",
         "min_size");
}

}  // namespace attnscope
