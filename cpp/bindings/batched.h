// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cassert>
#include <functional>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "bindings/tensors.h"
#include "matrix/widen.h"

// The one loop over a batch. It knows shapes, dtypes, strides, lengths, the GIL, threads and
// Ctrl-C, and no mathematics.
namespace attnscope {

// Runs work(begin, end, worker) over [0, count) in blocks of `grain`, handed out one by one to
// torch.get_num_threads() workers, with the GIL released: `work` must not touch Python. With a
// larger `most`, blocks begin with up to that many and shrink as less is left, so that workers end
// together. The calling thread looks for a pending signal between blocks; a KeyboardInterrupt stops
// all workers and is re-raised, and so is the first exception that `work` throws.
void run_blocks(Index count, Index grain,
                const std::function<void(Index begin, Index end, int worker)>& work,
                Index most = 0);

// Number of workers that run_blocks will use for `count` items.
int worker_count(Index count);

// Calls visit(data) with the batch's memory as a pointer of its own element type.
template <class AnyBatch, class Visit>
void visit_scalar(const AnyBatch& batch, Visit&& visit) {
  switch (batch.dtype) {
    case Dtype::float16:
      return visit(static_cast<const Eigen::half*>(batch.data));
    case Dtype::bfloat16:
      return visit(static_cast<const Eigen::bfloat16*>(batch.data));
    case Dtype::float32:
      return visit(static_cast<const float*>(batch.data));
    case Dtype::float64:
      return visit(static_cast<const double*>(batch.data));
  }
}

// Matrix `index` of the batch, whose memory starts at `data`.
template <class Scalar>
MatrixView<Scalar> view_of(const Batch& batch, const Scalar* data, Index index) {
  return matrix_view(data + batch.offset(index), batch.query_length(index), batch.length(index),
                     batch.row_stride, batch.column_stride);
}

// Calls visit(view, index) with matrix `index` of the batch as a MatrixView of its own element
// type.
template <class Visit>
void visit_matrix(const Batch& batch, Index index, Visit&& visit) {
  visit_scalar(batch, [&](const auto* data) { visit(view_of(batch, data, index), index); });
}

// The order in which a batch is worked off: as it lies, or longest matrix first where lengths
// differ, so that no worker is left with the largest piece at the end and equal lengths stand
// together.
std::vector<Index> batch_order(const Batch& batch);

// Entries in a block of work: few enough to share out and to answer Ctrl-C, so many that handing it
// out costs nothing.
inline constexpr Index kBlockEntries = Index{1} << 16;

// The same for kernels that take some tenths of a nanosecond an entry: a second worker is woken for
// what takes longer than to wake it. One that finds nothing to do cost 7 to 21 µs a call, measured
// with graph_statistics on 8 to 40 maps of 64 tokens, on two cores that others kept busy.
inline constexpr Index kBlockEntriesOfSums = Index{1} << 18;

// The same for kernels that take about a nanosecond an entry, where a second worker brings more
// than it costs: 2 to 4 µs if it has just worked, and some 17 if it sleeps, measured with
// attention_entropy on 40 maps of 32 tokens, which takes 39 µs on one thread and 26 on two.
inline constexpr Index kBlockEntriesOfLogarithms = Index{1} << 15;

// Matrices in a block of work, a multiple of `width`.
Index block_size(const Batch& batch, Index width, Index entries = kBlockEntries);

// The size, at most `most`, of as many blocks of `count` items for each worker: of 40 in blocks of
// at most 16 one of two workers would else have 24.
Index even_block(Index count, Index most);

// How many matrices that follow each other lie side by side in memory, entry by entry as heads do
// that are the fastest axis, and are worked off together: as many as a cache line holds, 1 where
// they do not lie so, where lengths order them otherwise or where their copies would not stay in a
// cache.
Index side_by_side(const Batch& batch);

// Whether the heads of a layer are the fastest axis, without gaps, and all maps are whole.
bool heads_lie_together(const Batch& batch);

// The rows [begin, end) of layer `layer` of such heads: [rows, keys·heads], rows contiguous, head h
// of key j at entry j·heads + h.
template <class Scalar>
MatrixView<Scalar> rows_of_layer(const Batch& batch, const Scalar* data, Index layer, Index begin,
                                 Index end) {
  const Index heads = batch.sizes.back();
  return matrix_view(data + batch.offset(layer * heads) + begin * batch.row_stride, end - begin,
                     batch.n * heads, batch.row_stride, Index{1});
}

// Rows [begin, begin + count) of a matrix, or those of them that it has.
template <class Scalar>
MatrixView<Scalar> rows_of(const MatrixView<Scalar>& matrix, Index begin, Index count) {
  begin = std::min<Index>(begin, matrix.rows());
  return matrix_view(matrix.data() + begin * matrix.outerStride(),
                     std::min<Index>(count, matrix.rows() - begin), matrix.cols(),
                     matrix.outerStride(), matrix.innerStride());
}

// Calls visit(view, index, begin, worker) for the parts of `rows` rows, `begin` the first of them,
// of matrices of which `width` lie side by side, on contiguous copies of so many parts at a time;
// `block`: matrices handed out at a time where each is one part.
template <class Visit>
void per_separated(const Batch& batch, Index width, Index rows, Index block, Visit&& visit) {
  const Index heads = batch.sizes.back();
  const Index parts = (batch.queries + rows - 1) / rows;
  // Fewer side by side where some workers would have none: two then read the same cache lines, for
  // different heads.
  const Index of_worker = batch.count * parts / worker_count(batch.count * parts);
  width = std::clamp<Index>(of_worker, 1, width);
  const Index groups = (heads + width - 1) / width;  // of a layer
  const Index all = batch.count / heads * groups * parts;
  const Index together = parts > 1 ? 1 : even_block(all, std::max<Index>(1, block / width));
  std::vector<AlignedBuffer> copies(worker_count(all));
  run_blocks(all, together, [&](Index first_unit, Index end_unit, int worker) {
    visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
      // The first-level cache holds few lines whose places differ by a power of two: copies begin
      // an odd number of lines after one another.
      constexpr Index kLine = 64 / static_cast<Index>(sizeof(Scalar));
      const Index most_rows = std::min(rows, batch.queries);
      const Index spacing = ((most_rows * batch.n + kLine - 1) / kLine | 1) * kLine;
      const Index numbers = (width * spacing * static_cast<Index>(sizeof(Scalar)) + 7) / 8;
      auto* const copy = reinterpret_cast<Scalar*>(copies[worker].resize(numbers));
      for (Index unit = first_unit; unit < end_unit; ++unit) {
        const Index group = unit / parts;
        const Index begin = unit % parts * rows;
        const Index head = group % groups * width;
        const Index first = group / groups * heads + head;
        const Index count = std::min(width, heads - head);
        const auto matrix = matrix_view(data + batch.offset(first), batch.queries, batch.n,
                                        batch.row_stride, batch.column_stride);
        const auto part = rows_of(matrix, begin, rows);
        separate(part, count, spacing, copy);
        for (Index m = 0; m < count; ++m) {
          const Index rows_of_head =
              std::clamp<Index>(batch.query_length(first + m) - begin, 0, part.rows());
          visit(matrix_view(copy + m * spacing, rows_of_head, batch.n, batch.n, 1), first + m,
                begin, worker);
        }
      }
    });
  });
}

// Calls kernel(view, index, next, worker) for every matrix, where worker is the worker's own
// element of `workers`, which holds worker_count(batch.count) of them, and next is the matrix that
// it takes after this one, -1 where that is not known. The kernel returns whether all entries are
// finite; one that sees a number that is not leaves the results as they were filled. Returns how
// many matrices were not finite. A matrix without a query is passed over. `block`: matrices handed
// out at a time, 1 where their costs are very uneven; `most`: as in run_blocks.
template <class Worker, class Kernel>
Index per_matrix_in_turn(const Batch& batch, std::vector<Worker>& workers, Index block, Index most,
                         Kernel&& kernel) {
  std::atomic<Index> non_finite{0};
  const auto visit = [&](const auto& view, Index index, Index next, Worker& worker) {
    if (view.rows() > 0 && !kernel(view, index, next, worker))
      non_finite.fetch_add(1, std::memory_order_relaxed);
  };
  if (const Index width = side_by_side(batch); width > 1) {
    per_separated(batch, width, std::max<Index>(1, batch.queries), block,
                  [&](const auto& view, Index index, Index, int number) {
                    visit(view, index, -1, workers[number]);
                  });
    return non_finite.load();
  }
  const std::vector<Index> order = batch_order(batch);
  const auto work = [&](Index begin, Index end, int number) {
    const Index known_end = workers.size() == 1 ? batch.count : end;
    for (Index position = begin; position < end; ++position) {
      const Index next = position + 1 < known_end ? order[position + 1] : -1;
      visit_matrix(batch, order[position], [&](const auto& view, Index index) {
        visit(view, index, next, workers[number]);
      });
    }
  };
  run_blocks(batch.count, most > block ? block : even_block(batch.count, block), work, most);
  return non_finite.load();
}

// The same with a kernel(view, index, workspace), a Workspace for each worker, and blocks of one
// size; 0: the usual one.
template <class Workspace, class Kernel>
Index per_matrix_checked_by_kernel(const Batch& batch, Kernel&& kernel, Index block = 0) {
  std::vector<Workspace> workers(worker_count(batch.count));
  if (block == 0) block = block_size(batch, 1);
  return per_matrix_in_turn(batch, workers, block, block,
                            [&](const auto& view, Index index, Index, Workspace& of_worker) {
                              return kernel(view, index, of_worker);
                            });
}

// The same with a kernel that gets finite matrices only and returns nothing.
template <class Workspace, class Kernel>
Index per_matrix(const Batch& batch, Kernel&& kernel, Index block = 0) {
  const auto checked = [&](const auto& view, Index index, Workspace& of_worker) {
    if (!all_finite(view)) return false;
    kernel(view, index, of_worker);
    return true;
  };
  return per_matrix_checked_by_kernel<Workspace>(batch, checked, block);
}

// The support of the rows of a matrix from `row` on.
inline Support from_row(Support support, Index row) {
  support.shift += row;
  if (support.mask != nullptr) support.mask += row * support.mask_row_stride;
  if (support.positions != nullptr) support.positions += row;
  return support;
}

// Calls kernel(part, index, begin, support, workspace) for parts of about `entries` entries of
// every matrix, so that workers share the rows of a large one; small ones are one part. `part`: the
// rows of matrix `index` from `begin` on, `support`: what they see, which the kernel finds out
// where `supports` is automatic. The kernel returns whether all entries of its rows are finite,
// and must give each row what it gives it among all rows. Once all parts of a matrix are there
// finish(index, finite, support) is called, with the support of the whole matrix. Returns how many
// matrices were not finite. A matrix without a query is passed over.
template <class Workspace, class Kernel, class Finish>
Index per_row_part(const Batch& batch, const SupportBatch& supports, Index entries, Kernel&& kernel,
                   Finish&& finish) {
  struct Progress {
    std::atomic<Index> parts{0};  // that are still to come
    std::atomic<bool> finite{true};
    std::atomic<bool> causal{true};
  };
  // Whole panels of rows where a matrix is read along its columns.
  constexpr Index kPanel = 16;
  const Index width = side_by_side(batch);
  const Index fitting = entries / std::max<Index>(1, width * batch.n) / kPanel * kPanel;
  const Index rows = std::max(kPanel, fitting);
  const Index parts = std::max<Index>(1, (batch.queries + rows - 1) / rows);
  std::vector<Progress> progress(batch.count);
  for (Progress& of_matrix : progress) of_matrix.parts.store(parts, std::memory_order_relaxed);
  std::vector<Workspace> workspaces(worker_count(batch.count * parts));
  std::atomic<Index> non_finite{0};
  const auto visit = [&](const auto& part, Index index, Index begin, int worker) {
    Progress& of_matrix = progress[index];
    if (part.rows() > 0) {
      Support support = from_row(supports.given(index), begin);
      if (!kernel(part, index, begin, support, workspaces[worker]))
        of_matrix.finite.store(false, std::memory_order_relaxed);
      if (support.kind != Support::Kind::causal)
        of_matrix.causal.store(false, std::memory_order_relaxed);
    }
    // Who brings the last part sees what the others wrote.
    if (of_matrix.parts.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    if (batch.query_length(index) == 0) return;
    Support support = supports.given(index);
    if (supports.automatic)
      support.kind = of_matrix.causal.load() ? Support::Kind::causal : Support::Kind::full;
    const bool finite = of_matrix.finite.load();
    if (!finite) non_finite.fetch_add(1, std::memory_order_relaxed);
    finish(index, finite, support);
  };
  const Index matrices = block_size(batch, 1, entries);
  if (width > 1) {
    per_separated(batch, width, rows, matrices, visit);
    return non_finite.load();
  }
  const std::vector<Index> order = batch_order(batch);
  const Index block = parts > 1 ? 1 : even_block(batch.count, matrices);
  run_blocks(batch.count * parts, block, [&](Index first, Index end, int worker) {
    for (Index at = first; at < end; ++at) {
      const Index begin = at % parts * rows;
      visit_matrix(batch, order[at / parts], [&](const auto& view, Index index) {
        visit(rows_of(view, begin, rows), index, begin, worker);
      });
    }
  });
  return non_finite.load();
}

// A result of `trailing` entries for each matrix, `fill` where it is not finite, and how many are
// not: kernel(view, index, out, workspace) writes the entries of one matrix to `out`; otherwise as
// per_matrix.
template <class Workspace, class T, class Kernel>
py::tuple result_per_matrix(const Batch& batch, const std::vector<Index>& trailing, T fill,
                            Kernel&& kernel, Index block = 0) {
  const Result<T> result = make_result(batch.sizes, trailing, fill);
  const Index numbers =
      std::accumulate(trailing.begin(), trailing.end(), Index{1}, std::multiplies<>());
  const auto write = [&](const auto& view, Index index, Workspace& workspace) {
    kernel(view, index, result.data + index * numbers, workspace);
  };
  const Index non_finite = per_matrix<Workspace>(batch, write, block);
  return py::make_tuple(result.tensor, non_finite);
}

// No instruction set interleaves more matrices than this.
inline constexpr Index kWidestPack = 16;

// Half of `width` where packs of so many large matrices would be fewer than the workers, for
// kernels that work on a pack's halves one after the other: half of the matrices then take half of
// the time.
Index shared_pack_width(const Batch& batch, Index width);

// Calls kernel(views, indices, workspace) with spans of 1 to `width` finite matrices of one size,
// which the kernel interleaves; otherwise as per_matrix. A kernel must give each matrix the result
// that it has alone.
template <class Workspace, class Kernel>
Index per_pack(const Batch& batch, Index width, Kernel&& kernel) {
  assert(1 <= width && width <= kWidestPack);
  const std::vector<Index> order = batch_order(batch);
  std::vector<Workspace> workspaces(worker_count(batch.count));
  std::atomic<Index> non_finite{0};
  run_blocks(batch.count, block_size(batch, width), [&](Index begin, Index end, int worker) {
    Workspace& workspace = workspaces[worker];
    visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
      std::vector<MatrixView<Scalar>> views;
      std::vector<Index> indices;
      views.reserve(width);
      indices.reserve(width);
      const auto flush = [&] {
        if (views.empty()) return;
        kernel(std::span<const MatrixView<Scalar>>(views), std::span<const Index>(indices),
               workspace);
        views.clear();
        indices.clear();
      };
      for (Index position = begin; position < end; ++position) {
        const Index index = order[position];
        const MatrixView<Scalar> view = view_of(batch, data, index);
        if (view.rows() == 0) continue;
        if (!all_finite(view)) {
          non_finite.fetch_add(1, std::memory_order_relaxed);
          continue;
        }
        if (!views.empty() &&
            (views.front().rows() != view.rows() || views.front().cols() != view.cols())) {
          flush();
        }
        views.push_back(view);
        indices.push_back(index);
        if (static_cast<Index>(views.size()) == width) flush();
      }
      flush();
    });
  });
  return non_finite.load();
}

// For kernels that need no scratch memory.
struct NoWorkspace {};

}  // namespace attnscope
