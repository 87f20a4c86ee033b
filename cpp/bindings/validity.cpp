// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>
#include <mutex>

#include "bindings/batched.h"
#include "bindings/exchange.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

// Fourth powers of magnitudes between these are numbers of all digits.
constexpr double kSmallestUnscaled = 1e-60;
constexpr double kLargestUnscaled = 1e60;

// The first entry, in index order, that is not finite or lies outside [0, upper]: (matrix, row,
// column, value), or None. Reads in place.
py::object first_invalid(Argument attention, Argument lengths, double upper) {
  const Batch batch = make_rectangles(attention, lengths);
  std::atomic<Index> first{batch.count};
  std::tuple<Index, Index, Index, double> invalid_entry;
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
          invalid_entry = {index, i, j, entry};
          return;
        }
      }
    });
  });
  if (first.load() == batch.count) return py::none();
  return py::cast(invalid_entry);
}

// Which matrices hold finite entries only, bool with the leading axes of `attention`. Reads in
// place.
py::object finite_matrices(Argument attention, Argument lengths) {
  const Batch batch = make_rectangles(attention, lengths);
  const Result<bool> result = make_result(batch.sizes, {}, false);
  per_matrix<NoWorkspace>(
      batch, [&](const auto&, Index index, NoWorkspace&) { result.data[index] = true; });
  return result.tensor;
}

// Whether a call can take `attention` as it is: a plain batch of fewer than `maps` square maps of
// fewer than `tokens` tokens, whose last map's last row sums to 1 within `tolerance`. Reads that
// row alone.
bool is_usual_attention(Argument attention, Index tokens, Index maps, double tolerance) {
  if (!is_plain_batch(attention)) return false;
  const Batch batch = make_batch(attention, py::none());
  if (batch.count == 0 || batch.count >= maps || batch.n >= tokens) return false;
  double sum = 0.0;
  visit_matrix(batch, batch.count - 1, [&](const auto& view, Index) {
    for (Index j = 0; j < batch.n; ++j) sum += static_cast<double>(view(batch.n - 1, j));
  });
  return std::abs(sum - 1.0) <= tolerance;
}

// What kernel(attention, None, *arguments) gives where a call can take `attention` as it is, None
// elsewhere: one call from Python instead of a check and a measurement.
py::object called_if_usual(const py::function& kernel, Argument attention, Index tokens, Index maps,
                           double tolerance, const py::tuple& arguments) {
  if (!is_usual_attention(attention, tokens, maps, tolerance)) return py::none();
  return kernel(attention, py::none(), *arguments);
}

// The power of two for each matrix [..., m, n] that brings its largest magnitude near 1, float64
// with the leading axes, or None where squares of no matrix leave float64's range as they are. Only
// the first `lengths` rows count, and as many columns of a square matrix; NaN and infinite entries
// do not. Reads in place.
py::object power_scales(Argument matrices, Argument lengths) {
  const MatrixBatch batch = make_matrices(matrices);
  if (batch.dtype != Dtype::float64) return py::none();
  const std::int64_t* sizes = integers_of(lengths, batch.count);
  const Result<double> result = make_result(batch.sizes, {}, 1.0);
  std::atomic<bool> scaled{false};
  run_blocks(batch.count, 1, [&](Index begin, Index, int) {
    const Index rows = sizes == nullptr ? batch.rows : sizes[begin];
    const Index columns = batch.rows == batch.columns ? rows : batch.columns;
    const double* data = static_cast<const double*>(batch.data) + batch.offset(begin);
    double largest = 0.0;
    for (Index i = 0; i < rows; ++i) {
      const double* row = data + i * batch.row_stride;
      for (Index j = 0; j < columns; ++j) {
        const double magnitude = std::abs(row[j * batch.column_stride]);
        if (magnitude > largest && magnitude <= std::numeric_limits<double>::max())
          largest = magnitude;
      }
    }
    if (largest == 0.0 || (largest > kSmallestUnscaled && largest < kLargestUnscaled)) return;
    result.data[begin] = unit_power(largest);
    scaled.store(true, std::memory_order_relaxed);
  });
  if (!scaled.load()) return py::none();
  return result.tensor;
}

}  // namespace

void bind_validity(py::module_& module) {
  define(module, "is_plain_batch", &is_plain_batch, "attention");
  define(module, "are_plain_vectors", &are_plain_vectors, "vectors");
  define(module, "is_usual_attention", &is_usual_attention, "attention", "tokens", "maps",
         "tolerance");
  define(module, "called_if_usual", &called_if_usual, "kernel", "attention", "tokens", "maps",
         "tolerance", "arguments");
  define(module, "holds_memory", &holds_memory, "tensor");
  define(module, "power_scales", &power_scales, "matrices", "lengths");
  define(module, "first_invalid", &first_invalid, "attention", "lengths", "upper");
  define(module, "finite_matrices", &finite_matrices, "attention", "lengths");
}

}  // namespace attnscope
