// SPDX-License-Identifier: MIT
#include "kernels/positions/toeplitz.h"

#include <pybind11/stl.h>

#include "bindings/batched.h"
#include "bindings/next_matrix.h"
#include "linalg/mask_only.h"

namespace attnscope {
namespace {

// Results of each map, of which a kernel writes all unless maps differ in length.
Result<double> results(const Batch& batch, const std::vector<Index>& trailing) {
  return batch.lengths == nullptr ? make_empty<double>(batch.sizes, trailing)
                                  : make_result(batch.sizes, trailing, kNaN);
}

// Matrices in the largest block of work: many, because the first of a block is not asked for ahead
// and memory is read in longer runs.
Index largest_block(const Batch& batch) { return 64 * block_size(batch, 1); }

py::tuple split(Argument scores, Argument lengths, bool late, Argument weights,
                Index weight_matrices) {
  const Batch batch = make_batch(scores, lengths);
  const Index m = split_rows(batch.n, late);
  const double* weighing = numbers_of(weights, weight_matrices * m * m);
  const auto vector = [&] { return results(batch, {m}); };
  const Result<double> profile = vector(), row = vector(), variance = vector(), first = vector(),
                       lse = vector();
  const Result<double> residual = results(batch, {m, m});
  std::vector<ToeplitzWorkspace> workers(worker_count(batch.count));
  const Index bad = per_matrix_in_turn(
      batch, workers, block_size(batch, 1), largest_block(batch),
      [&](const auto& view, Index index, Index next, auto& workspace) {
        ToeplitzAhead ahead{memory_of(batch, view, next), {}};
        if (next >= 0)
          ahead.residual = {residual.data + next * m * m,
                            m * m * static_cast<Index>(sizeof(double))};
        const ToeplitzOutputs out{profile.data + index * m,
                                  residual.data + index * m * m,
                                  row.data + index * m,
                                  variance.data + index * m,
                                  first.data + index * m,
                                  lse.data + index * m,
                                  m};
        const double* of_map = weight_matrices > 1 ? weighing + index * m * m : weighing;
        return toeplitz_split(view, late, of_map, m, out, workspace, ahead);
      });
  return py::make_tuple(py::make_tuple(profile.tensor, residual.tensor, row.tensor, variance.tensor,
                                       first.tensor, lse.tensor),
                        bad);
}

py::tuple cut(Argument scores, Argument lengths, Argument sinks, Index sink_count,
              const std::vector<std::int64_t>& queries, bool body) {
  const Batch batch = make_batch(scores, lengths);
  const Index m = split_rows(batch.n, true);
  const auto count = static_cast<Index>(queries.size());
  const double* logits = numbers_of(sinks, sink_count);
  const auto vector = [&] { return results(batch, {m}); };
  const Result<double> lse = vector(), cut = vector(), share = vector();
  const Result<double> attention = results(batch, {count, m});
  std::vector<MaskOnlyWorkspace> workers(worker_count(batch.count));
  const Index bad = per_matrix_in_turn(
      batch, workers, block_size(batch, 1), largest_block(batch),
      [&](const auto& view, Index index, Index next, auto& workspace) {
        // Queries behind a shorter map's own half have no attention.
        const Index split = split_rows(view.rows(), true);
        const Index few = std::lower_bound(queries.begin(), queries.end(), split) - queries.begin();
        const double sink =
            logits == nullptr ? -std::numeric_limits<double>::infinity() : logits[index];
        return mask_only(view, sink, queries.data(), few, body, lse.data + index * m,
                         cut.data + index * m, share.data + index * m,
                         attention.data + index * count * m, m, workspace,
                         memory_of(batch, view, next));
      });
  return py::make_tuple(py::make_tuple(lse.tensor, cut.tensor, share.tensor, attention.tensor),
                        bad);
}

py::tuple by_offset(Argument values, Argument lengths) {
  const Batch batch = make_batch(values, lengths);
  const Index n = batch.n;
  const Result<double> mean = make_result(batch.sizes, {n}, kNaN);
  const Result<double> variance = make_result(batch.sizes, {n}, kNaN);
  const Result<std::int64_t> count = make_result(batch.sizes, {n}, std::int64_t{-1});
  const Index bad = per_matrix_checked_by_kernel<ToeplitzWorkspace>(
      batch, [&](const auto& view, Index index, auto& workspace) {
        return offset_variance(view, mean.data + index * n, variance.data + index * n,
                               count.data + index * n, workspace);
      });
  return py::make_tuple(py::make_tuple(mean.tensor, variance.tensor, count.tensor), bad);
}

}  // namespace

void bind_toeplitz(py::module_& module) {
  define(module, "toeplitz_split", &split, "scores", "lengths", "late", "weights",
         "weight_matrices");
  define(module, "mask_only", &cut, "scores", "lengths", "sinks", "sink_count", "queries", "body");
  define(module, "offset_variance", &by_offset, "values", "lengths");
}

}  // namespace attnscope
