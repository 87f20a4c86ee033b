// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <vector>

#include "bindings/tensors.h"

// The one loop over a batch. It knows shapes, dtypes, strides, lengths, the GIL, threads and Ctrl-C, and
// no mathematics.
namespace attnscope {

inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Runs work(begin, end, worker) over [0, count) in blocks of `grain`, handed out one by one to
// torch.get_num_threads() workers, with the GIL released: `work` must not touch Python. The calling
// thread looks for a pending signal between blocks; a KeyboardInterrupt stops all workers and is
// re-raised, and so is the first exception that `work` throws.
void run_blocks(Index count, Index grain,
                const std::function<void(Index begin, Index end, int worker)>& work);

// Number of workers that run_blocks will use for `count` items.
int worker_count(Index count);

// Calls visit(view, index) with matrix `index` of the batch as a MatrixView of its own element type.
template <class Visit>
void visit_matrix(const Batch& batch, Index index, Visit&& visit) {
  const Index offset = batch.offset(index);
  const auto call = [&](auto* typed) {
    visit(matrix_view(typed + offset, batch.length(index), batch.row_stride, batch.column_stride),
          index);
  };
  switch (batch.dtype) {
    case Dtype::float16:
      return call(static_cast<const Eigen::half*>(batch.data));
    case Dtype::bfloat16:
      return call(static_cast<const Eigen::bfloat16*>(batch.data));
    case Dtype::float32:
      return call(static_cast<const float*>(batch.data));
    case Dtype::float64:
      return call(static_cast<const double*>(batch.data));
  }
}

// Calls kernel(view, index, workspace) for every matrix whose entries are finite, each worker with a
// Workspace of its own that lives as long as the call. Returns how many matrices were not finite; their
// results keep what they were filled with. Ragged batches start with their longest matrix, so that no
// worker is left with the largest piece at the end.
template <class Workspace, class Kernel>
Index per_matrix(const Batch& batch, Kernel&& kernel) {
  std::vector<Index> order;
  if (batch.lengths != nullptr) {
    order.resize(static_cast<std::size_t>(batch.count));
    for (Index i = 0; i < batch.count; ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](Index a, Index b) { return batch.lengths[a] > batch.lengths[b]; });
  }
  // A block is about 64k entries: small enough to share out and to answer Ctrl-C, large enough that
  // handing it out costs nothing.
  const Index grain = std::max<Index>(1, (Index{1} << 16) / std::max<Index>(1, batch.n * batch.n));
  std::vector<Workspace> workspaces(static_cast<std::size_t>(worker_count(batch.count)));
  std::atomic<Index> spoiled{0};
  run_blocks(batch.count, grain, [&](Index begin, Index end, int worker) {
    Workspace& workspace = workspaces[static_cast<std::size_t>(worker)];
    for (Index position = begin; position < end; ++position) {
      const Index index = order.empty() ? position : order[static_cast<std::size_t>(position)];
      visit_matrix(batch, index, [&](const auto& view, Index at) {
        if (all_finite(view)) {
          kernel(view, at, workspace);
        } else {
          spoiled.fetch_add(1, std::memory_order_relaxed);
        }
      });
    }
  });
  return spoiled.load();
}

// For kernels that need no scratch memory.
struct NoWorkspace {};

}  // namespace attnscope
