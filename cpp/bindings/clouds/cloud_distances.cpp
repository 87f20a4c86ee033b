// SPDX-License-Identifier: MIT
#include "bindings/batched.h"
#include "matrix/row_distances.h"
#include "matrix/widen.h"
#include "simd/memory.h"

namespace attnscope {
namespace {

// Points widened to float64, in the rows that row_distances reads; whether all are finite.
bool widen_points(const MatrixBatch& batch, Index index, Index n, bool unit, double* out) {
  const Index stride = point_stride(batch.columns);
  std::atomic<bool> finite{true};
  run_blocks(n, kDistanceRows, [&](Index begin, Index end, int) {
    visit_scalar(batch, [&](const auto* data) {
      const auto* points = data + batch.offset(index);
      for (Index i = begin; i < end; ++i) {
        double* row = out + i * stride;
        std::fill(row + batch.columns, row + stride, 0.0);
        // widen_states counts rows of the width itself.
        if (!widen_states(points, batch.row_stride, batch.column_stride, batch.columns, i, i + 1,
                          unit, row - i * batch.columns)) {
          finite.store(false, std::memory_order_relaxed);
        }
      }
    });
  });
  std::fill(out + n * stride, out + point_rows(n) * stride, 0.0);
  return finite.load();
}

py::tuple cloud_distances(Argument points, Argument lengths, const std::string& metric) {
  const MatrixBatch batch = make_matrices(points);
  const std::int64_t* sizes = integers_of(lengths, batch.count);
  const PointMetric kind = metric == "cosine" ? PointMetric::cosine : PointMetric::euclidean;
  const Result<double> result = make_result(batch.sizes, {batch.rows, batch.rows}, kNaN);
  AlignedBuffer buffer;
  double* wide = buffer.resize(point_rows(batch.rows) * point_stride(batch.columns));
  Index non_finite = 0;
  for (Index index = 0; index < batch.count; ++index) {
    const Index n = sizes == nullptr ? batch.rows : sizes[index];
    if (!widen_points(batch, index, n, kind == PointMetric::cosine, wide)) {
      ++non_finite;
      continue;
    }
    double* out = result.data + index * batch.rows * batch.rows;
    run_blocks(n, kDistanceRows, [&](Index begin, Index end, int) {
      row_distances(wide, n, batch.columns, kind, begin, end, out, batch.rows);
    });
  }
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_cloud_distances(py::module_& module) {
  define(module, "cloud_distances", &cloud_distances, "points", "lengths", "metric");
}

}  // namespace attnscope
