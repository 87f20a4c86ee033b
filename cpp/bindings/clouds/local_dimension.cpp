// SPDX-License-Identifier: MIT
#include "kernels/clouds/local_dimension.h"

#include <pybind11/stl.h>

#include "bindings/clouds/subsets.h"

namespace attnscope {
namespace {

// Rows of neighbours that are sorted at a time.
constexpr Index kRows = 16;

struct Worker {
  NeighbourScratch rows;
  std::vector<double> scratch;
};

// Calls work(neighbours, member, place, worker) for every cloud without a NaN and every subset,
// where `place` counts results, subsets outermost. Returns how many clouds hold a NaN.
template <class Work>
Index per_subset(const Batch& batch, const std::int64_t* groups, bool one_group_for_all,
                 const Subsets& subsets, Index most, Work&& work) {
  std::vector<Worker> workers(worker_count(std::max(batch.n, subsets.count)));
  Neighbours neighbours;
  std::vector<std::vector<std::int32_t>> equal;
  Index non_finite = 0;
  for (Index index = 0; index < batch.count; ++index) {
    const Index n = batch.length(index);
    bool finite = false;
    visit_matrix(batch, index, [&](const auto& view, Index) { finite = none_is_nan(view); });
    if (!finite) {
      ++non_finite;
      continue;
    }
    const std::int64_t* groups_of_cloud = groups;
    if (groups_of_cloud != nullptr && !one_group_for_all) groups_of_cloud += index * batch.n;
    reset_neighbours(n, neighbours);
    equal.assign(n, {});
    run_blocks(n, kRows, [&](Index begin, Index end, int worker) {
      visit_matrix(batch, index, [&](const auto& view, Index) {
        for (Index i = begin; i < end; ++i) {
          sort_neighbours(view, groups_of_cloud, i, subsets.has_flags() ? Index{-1} : most,
                          neighbours, equal[i], workers[worker].rows);
        }
      });
    });
    for (std::size_t i = 0; i < equal.size(); ++i) {
      neighbours.equal.insert(neighbours.equal.end(), equal[i].begin(), equal[i].end());
      neighbours.equal_begin[i + 1] = static_cast<Index>(neighbours.equal.size());
    }
    run_blocks(subsets.count, 1, [&](Index begin, Index end, int worker) {
      for (Index subset = begin; subset < end; ++subset) {
        work(neighbours, subsets.of(subset), subset * batch.count + index, workers[worker].scratch);
      }
    });
  }
  return non_finite;
}

py::tuple dimensions(Argument distances, Argument lengths, Argument groups, bool one_group_for_all,
                     Argument subsets, Index subset_count, const std::vector<Index>& k) {
  const Batch batch = make_batch(distances, lengths);
  const Subsets chosen = make_subsets(subsets, subset_count, batch.n);
  const std::int64_t* labels =
      integers_of(groups, one_group_for_all ? batch.n : batch.count * batch.n);
  const auto count = static_cast<Index>(k.size());
  const std::vector<Index> leading = leading_of(batch, chosen);
  const Result<double> value = make_result(leading, {count}, kNaN);
  const Result<double> points = make_result(leading, {count, batch.n}, kNaN);
  const Result<std::int64_t> used = make_result(leading, {count}, std::int64_t{-1});
  const Result<std::int64_t> duplicates = make_result(leading, {count}, std::int64_t{-1});
  const Result<std::int64_t> tied = make_result(leading, {count}, std::int64_t{-1});
  const Index largest = *std::max_element(k.begin(), k.end());
  const Index non_finite = per_subset(
      batch, labels, one_group_for_all, chosen, largest,
      [&](const Neighbours& neighbours, const bool* member, Index place, auto& scratch) {
        // The kernel's rows of points are as long as the cloud.
        const Index n = neighbours.n;
        std::vector<double> rows(count * n, kNaN);
        const LocalDimensionResult result{value.data + place * count, rows.data(),
                                          used.data + place * count, tied.data + place * count};
        const Index equal = local_dimension(neighbours, member, k.data(), count, result, scratch);
        std::fill_n(duplicates.data + place * count, count, equal);
        for (Index a = 0; a < count; ++a) {
          std::copy_n(rows.data() + a * n, n, points.data + (place * count + a) * batch.n);
        }
      });
  return py::make_tuple(value.tensor, points.tensor, used.tensor, duplicates.tensor, tied.tensor,
                        non_finite);
}

py::tuple two_nearest(Argument distances, Argument lengths, Argument subsets, Index subset_count,
                      double discard) {
  const Batch batch = make_batch(distances, lengths);
  const Subsets chosen = make_subsets(subsets, subset_count, batch.n);
  const Result<double> value = make_result(leading_of(batch, chosen), {}, kNaN);
  const Index non_finite =
      per_subset(batch, nullptr, true, chosen, 2,
                 [&](const Neighbours& neighbours, const bool* member, Index place, auto& scratch) {
                   value.data[place] = two_nn(neighbours, member, discard, scratch);
                 });
  return py::make_tuple(value.tensor, non_finite);
}

}  // namespace

void bind_local_dimension(py::module_& module) {
  define(module, "local_dimension", &dimensions, "distances", "lengths", "groups",
         "one_group_for_all", "subsets", "subset_count", "k");
  define(module, "two_nn", &two_nearest, "distances", "lengths", "subsets", "subset_count",
         "discard");
}

}  // namespace attnscope
