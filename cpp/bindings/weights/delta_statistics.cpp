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
  const MatrixBatch one = make_matrices(before);
  const MatrixBatch other = make_matrices(after);
  if (one.count != other.count || one.rows != other.rows || one.columns != other.columns) {
    throw py::value_error("before and after must have the same shape");
  }
  const bool wide = one.dtype == Dtype::float64 || other.dtype == Dtype::float64;
  void* written = delta.is_none() ? nullptr
                                  : entries_of(delta, wide ? Dtype::float64 : Dtype::float32,
                                               one.count * one.rows * one.columns);
  const Index step = std::max<Index>(1, kBlock / std::max<Index>(1, one.columns));
  const Index blocks = (one.rows + step - 1) / step;
  std::vector<DeltaSums> parts(one.count * blocks);
  std::vector<RowScratch> workers(worker_count(one.count * blocks));
  run_blocks(one.count * blocks, 1, [&](Index begin, Index end, int worker) {
    for (Index item = begin; item < end; ++item) {
      const Index index = item / blocks;
      const Index row = item % blocks * step;
      const Index rows = std::min(step, one.rows - row);
      visit_scalar(one, [&]<class Before>(const Before* from) {
        visit_scalar(other, [&]<class After>(const After* to) {
          using Wide = Difference<Before, After>;
          Wide* out = static_cast<Wide*>(written);
          if (out != nullptr) out += (index * one.rows + row) * one.columns;
          parts[item] =
              delta_sums(rows_of(one, from, index, row, rows), rows_of(other, to, index, row, rows),
                         out, one.columns, workers[worker]);
        });
      });
    }
  });
  const Result<double> result = make_result(one.sizes, {7}, kNaN);
  Index non_finite = 0;
  for (Index index = 0; index < one.count; ++index) {
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
