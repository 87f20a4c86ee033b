// SPDX-License-Identifier: MIT
#include <mutex>

#include "bindings/batched.h"

namespace attnscope {
namespace {

// The first entry, in index order, that is not finite or lies outside [0, upper]: (matrix, row, column,
// value), or None. Reads in place.
py::object first_invalid(Argument attention, Argument lengths, double upper) {
  const Batch batch = make_batch(attention, lengths);
  std::atomic<Index> first{batch.count};
  std::tuple<Index, Index, Index, double> found;
  std::mutex lock;
  run_blocks(batch.count, 1, [&](Index begin, Index, int) {
    if (begin > first.load(std::memory_order_relaxed)) return;
    visit_matrix(batch, begin, [&](const auto& view, Index index) {
      for (Index i = 0; i < view.rows(); ++i) {
        for (Index j = 0; j < view.cols(); ++j) {
          const double entry = static_cast<double>(view(i, j));
          if (entry >= 0.0 && entry <= upper) continue;
          const std::lock_guard<std::mutex> guard(lock);
          if (index > first.load()) return;
          first.store(index);
          found = {index, i, j, entry};
          return;
        }
      }
    });
  });
  if (first.load() == batch.count) return py::none();
  return py::cast(found);
}

// Which matrices hold finite entries only, bool with the leading axes of `attention`. Reads in place.
py::object finite_matrices(Argument attention, Argument lengths) {
  const Batch batch = make_batch(attention, lengths);
  const Result<bool> result = make_result(batch.sizes, {}, false);
  per_matrix<NoWorkspace>(batch, [&](const auto&, Index index, NoWorkspace&) { result.data[index] = true; });
  return result.tensor;
}

}  // namespace

void bind_validity(py::module_& module) {
  define(module, "is_plain_batch", &is_plain_batch, "attention");
  define(module, "first_invalid", &first_invalid, "attention", "lengths", "upper");
  define(module, "finite_matrices", &finite_matrices, "attention", "lengths");
}

}  // namespace attnscope
