// SPDX-License-Identifier: MIT
#include "bindings/batched.h"

namespace attnscope {
namespace {

// Calls visit(i, j, entry) with the first entry of a matrix, in index order, that is not in [0, upper].
template <class Scalar, class Visit>
void visit_invalid(const MatrixView<Scalar>& view, double upper, Visit&& visit) {
  for (Index i = 0; i < view.rows(); ++i) {
    for (Index j = 0; j < view.cols(); ++j) {
      const double entry = static_cast<double>(view(i, j));
      if (!(entry >= 0.0 && entry <= upper)) return visit(i, j, entry);
    }
  }
}

// The first entry, in index order, that is not finite or lies outside [0, upper]: (matrix, row, column,
// value), or None. Reads in place.
py::object first_invalid(Argument attention, Argument lengths, double upper) {
  const Batch batch = make_batch(attention, lengths);
  std::atomic<Index> first{batch.count};
  run_blocks(batch.count, 1, [&](Index begin, Index, int) {
    if (begin > first.load(std::memory_order_relaxed)) return;
    visit_matrix(batch, begin, [&](const auto& view, Index index) {
      visit_invalid(view, upper, [&](Index, Index, double) {
        Index seen = first.load();
        while (index < seen && !first.compare_exchange_weak(seen, index)) {
        }
      });
    });
  });
  const Index matrix = first.load();
  py::object found = py::none();
  if (matrix == batch.count) return found;
  visit_matrix(batch, matrix, [&](const auto& view, Index) {
    visit_invalid(view, upper, [&](Index i, Index j, double entry) {
      found = py::make_tuple(matrix, i, j, entry);
    });
  });
  return found;
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
