// SPDX-License-Identifier: MIT
#include <cmath>

#include "bindings/batched.h"

namespace attnscope {
namespace {

// The first entry, in index order, that is not finite or lies outside [0, upper]: (matrix, row, column,
// value), or None. Reads in place.
py::object first_invalid(const py::object& attention, const py::object& lengths, double upper) {
  const Batch batch = make_batch(attention, lengths);
  std::atomic<Index> first{batch.count};
  run_blocks(batch.count, 1, [&](Index begin, Index, int) {
    if (begin > first.load(std::memory_order_relaxed)) return;
    visit_matrix(batch, begin, [&](const auto& view, Index index) {
      for (Index i = 0; i < view.rows(); ++i) {
        for (Index j = 0; j < view.cols(); ++j) {
          const double entry = static_cast<double>(view(i, j));
          if (entry >= 0.0 && entry <= upper) continue;
          Index seen = first.load();
          while (index < seen && !first.compare_exchange_weak(seen, index)) {
          }
          return;
        }
      }
    });
  });
  const Index matrix = first.load();
  if (matrix == batch.count) return py::none();
  py::object found = py::none();
  visit_matrix(batch, matrix, [&](const auto& view, Index) {
    for (Index i = 0; i < view.rows() && found.is_none(); ++i) {
      for (Index j = 0; j < view.cols() && found.is_none(); ++j) {
        const double entry = static_cast<double>(view(i, j));
        if (!(entry >= 0.0 && entry <= upper)) found = py::make_tuple(matrix, i, j, entry);
      }
    }
  });
  return found;
}

// Which matrices hold finite entries only, bool with the leading axes of `attention`. Reads in place.
py::object finite_matrices(const py::object& attention, const py::object& lengths) {
  const Batch batch = make_batch(attention, lengths);
  const Result<bool> result = make_result(batch.sizes, {}, false);
  run_blocks(batch.count, block_size(batch, 1), [&](Index begin, Index end, int) {
    for (Index at = begin; at < end; ++at) {
      visit_matrix(batch, at,
                   [&](const auto& view, Index index) { result.data[index] = all_finite(view); });
    }
  });
  return result.tensor;
}

}  // namespace

void bind_validity(py::module_& module) {
  define(module, "is_plain_batch", &is_plain_batch, "attention");
  define(module, "first_invalid", &first_invalid, "attention", "lengths", "upper");
  define(module, "finite_matrices", &finite_matrices, "attention", "lengths");
}

}  // namespace attnscope
