// SPDX-License-Identifier: MIT
#include "kernels/clouds/fragmentation.h"

#include "bindings/clouds/subsets.h"

namespace attnscope {
namespace {

py::tuple fragments(const py::object& distances, const py::object& lengths,
                    const py::object& subsets, Index subset_count) {
  const Batch batch = make_batch(distances, lengths);
  const Subsets chosen = make_subsets(subsets, subset_count, batch.n);
  const Result<double> value = make_result(leading_of(batch, chosen), {}, kNaN);
  const Index items = batch.count * chosen.count;
  std::vector<FragmentationWorkspace> workers(static_cast<std::size_t>(worker_count(items)));
  std::vector<char> finite(static_cast<std::size_t>(batch.count));
  for (Index index = 0; index < batch.count; ++index) {
    visit_matrix(batch, index,
                 [&](const auto& view, Index at) { finite[at] = all_finite(view) ? 1 : 0; });
  }
  run_blocks(items, 1, [&](Index begin, Index end, int worker) {
    for (Index item = begin; item < end; ++item) {
      const Index index = item % batch.count;
      if (finite[static_cast<std::size_t>(index)] == 0) continue;
      visit_matrix(batch, index, [&](const auto& view, Index) {
        value.data[item] = fragmentation(view, chosen.of(item / batch.count),
                                         workers[static_cast<std::size_t>(worker)]);
      });
    }
  });
  return py::make_tuple(value.tensor, std::count(finite.begin(), finite.end(), 0));
}

py::tuple components(const py::object& distances, const py::object& lengths,
                     const py::object& scales, Index scale_count, Index min_size) {
  const Batch batch = make_batch(distances, lengths);
  const double* sizes = numbers_of(scales, scale_count);
  const Result<std::int64_t> number = make_result(batch.sizes, {scale_count}, std::int64_t{-1});
  const Result<std::int64_t> clusters = make_result(batch.sizes, {scale_count}, std::int64_t{-1});
  const Result<std::int64_t> single = make_result(batch.sizes, {scale_count}, std::int64_t{-1});
  const Result<double> largest = make_result(batch.sizes, {scale_count}, kNaN);
  const Index non_finite = per_matrix<FragmentationWorkspace>(
      batch, [&](const auto& view, Index index, FragmentationWorkspace& workspace) {
        std::vector<Components> found(static_cast<std::size_t>(scale_count));
        cloud_components(view, sizes, scale_count, min_size, found.data(), workspace);
        for (Index s = 0; s < scale_count; ++s) {
          const Index at = index * scale_count + s;
          number.data[at] = found[s].components;
          clusters.data[at] = found[s].clusters;
          single.data[at] = found[s].singletons;
          largest.data[at] = found[s].largest;
        }
      });
  return py::make_tuple(number.tensor, clusters.tensor, single.tensor, largest.tensor, non_finite);
}

}  // namespace

void bind_fragmentation(py::module_& module) {
  define(module, "fragmentation", &fragments, "distances", "lengths", "subsets", "subset_count");
  define(module, "cloud_components", &components, "distances", "lengths", "scales", "scale_count", "min_size");
}

}  // namespace attnscope
