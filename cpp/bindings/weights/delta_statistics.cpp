// SPDX-License-Identifier: MIT
#include "kernels/weights/delta_statistics.h"

#include "bindings/batched.h"

namespace attnscope {
namespace {

// Entries of a block of rows: fixed, so that sums do not depend on the number of threads.
constexpr Index kBlock = Index{1} << 18;

template <class Scalar>
MatrixView<Scalar> rows_of(const MatrixBatch& batch, const Scalar* data, Index index, Index begin,
                           Index rows) {
  return MatrixView<Scalar>(
      data + batch.offset(index) + begin * batch.row_stride, rows, batch.columns,
      Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(batch.row_stride, batch.column_stride));
}

// The sums [count, 7] in the order of DeltaSums, and how many pairs are not finite. Unless it is
// None, ΔW is written to `delta`, a contiguous tensor.
py::tuple delta_statistics(Argument before, Argument after, Argument delta) {
  const MatrixBatch from_matrices = make_matrices(before);
  const MatrixBatch to_matrices = make_matrices(after);
  if (from_matrices.count != to_matrices.count || from_matrices.rows != to_matrices.rows ||
      from_matrices.columns != to_matrices.columns) {
    throw py::value_error("before and after must have the same shape");
  }
  const bool wide = from_matrices.dtype == Dtype::float64 || to_matrices.dtype == Dtype::float64;
  void* written =
      delta.is_none()
          ? nullptr
          : entries_of(delta, wide ? Dtype::float64 : Dtype::float32,
                       from_matrices.count * from_matrices.rows * from_matrices.columns);
  const Index step = std::max<Index>(1, kBlock / std::max<Index>(1, from_matrices.columns));
  const Index blocks = (from_matrices.rows + step - 1) / step;
  std::vector<DeltaSums> parts(from_matrices.count * blocks);
  std::vector<RowScratch> workers(worker_count(from_matrices.count * blocks));
  run_blocks(from_matrices.count * blocks, 1, [&](Index begin, Index end, int worker) {
    for (Index item = begin; item < end; ++item) {
      const Index index = item / blocks;
      const Index row = item % blocks * step;
      const Index rows = std::min(step, from_matrices.rows - row);
      visit_scalar(from_matrices, [&]<class Before>(const Before* from) {
        visit_scalar(to_matrices, [&]<class After>(const After* to) {
          using Wide = Difference<Before, After>;
          Wide* out = static_cast<Wide*>(written);
          if (out != nullptr) out += (index * from_matrices.rows + row) * from_matrices.columns;
          parts[item] = delta_sums(rows_of(from_matrices, from, index, row, rows),
                                   rows_of(to_matrices, to, index, row, rows), out,
                                   from_matrices.columns, workers[worker]);
        });
      });
    }
  });
  const Result<double> result = make_result(from_matrices.sizes, {7}, kNaN);
  Index non_finite = 0;
  for (Index index = 0; index < from_matrices.count; ++index) {
    DeltaSums sums;
    for (Index block = 0; block < blocks; ++block) {
      sums.add(parts[index * blocks + block]);
    }
    if (!sums.finite) {
      ++non_finite;
      continue;
    }
    const double values[] = {sums.energy,      sums.before_energy, sums.product, sums.before_steps,
                             sums.after_steps, sums.unchanged,     sums.largest};
    std::copy(std::begin(values), std::end(values), result.data + index * 7);
  }
  return py::make_tuple(result.tensor, non_finite);
}

}  // namespace

void bind_delta_statistics(py::module_& module) {
  define(module, "delta_statistics", &delta_statistics, "before", "after", "delta");
}

}  // namespace attnscope
