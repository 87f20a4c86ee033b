// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <vector>

#include "bindings/batched.h"
#include "matrix/widen.h"
#include "simd/memory.h"

// The loops over layers, all heads of a layer together in blocks of rows, and over maps with token
// states beside them.
namespace attnscope {

// Which matrices of a batch are finite, and each one's support, judged once by all workers.
struct MatrixStatus {
  std::vector<char> finite;
  std::vector<Support> supports;
};

inline MatrixStatus matrix_status(const Batch& batch, const SupportBatch& supports) {
  MatrixStatus status{std::vector<char>(batch.count), std::vector<Support>(batch.count)};
  // A matrix without queries is not visited, and has nothing that is not finite.
  for (Index index = 0; index < batch.count; ++index)
    status.finite[index] = batch.query_length(index) == 0 ? 1 : 0;
  per_matrix<NoWorkspace>(batch, [&](const auto& view, Index index, NoWorkspace&) {
    status.finite[index] = 1;
    status.supports[index] = supports.of(index, view);
  });
  return status;
}

// Calls kernel(heads, supports, layer, begin, end, workspace) for blocks of rows of every layer
// whose heads are all finite; a layer is the last leading axis, and its heads have one length.
// Returns how many layers were not finite.
template <class Workspace, class Kernel>
Index per_layer(const Batch& batch, const SupportBatch& supports, Kernel&& kernel) {
  const Index heads = batch.sizes.back();
  const Index layers = batch.count / heads;
  const MatrixStatus status = matrix_status(batch, supports);
  struct Block {
    Index layer;
    Index begin;
    Index end;
  };
  std::vector<Block> blocks;
  Index non_finite = 0;
  // A block is about 64k entries, and whole panels of rows where a matrix is read transposed.
  const Index rows = std::max<Index>(16, (Index{1} << 16) / (heads * batch.n) / 16 * 16);
  for (Index layer = 0; layer < layers; ++layer) {
    const auto first = status.finite.begin() + layer * heads;
    if (std::find(first, first + heads, 0) != first + heads) {
      ++non_finite;
      continue;
    }
    const Index queries = batch.query_length(layer * heads);
    for (Index begin = 0; begin < queries; begin += rows) {
      blocks.push_back({layer, begin, std::min(queries, begin + rows)});
    }
  }
  const auto count = static_cast<Index>(blocks.size());
  std::vector<Workspace> workspaces(worker_count(count));
  run_blocks(count, 1, [&](Index at, Index, int worker) {
    const Block& block = blocks[at];
    visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
      std::vector<MatrixView<Scalar>> views;
      views.reserve(heads);
      for (Index h = 0; h < heads; ++h) {
        views.push_back(view_of(batch, data, block.layer * heads + h));
      }
      const std::span<const Support> own(status.supports.data() + block.layer * heads, heads);
      kernel(std::span<const MatrixView<Scalar>>(views), own, block.layer, block.begin, block.end,
             workspaces[worker]);
    });
  });
  return non_finite;
}

// Calls kernel(group, supports, states, of_queries, begin, end, block, workspace) for blocks of
// state_rows(n) rows of every group of matrices that share one state: `group` holds the indices of
// its finite matrices, `supports` those of all, `states` [keys, width] the state in float64, its
// rows scaled to norm 1 where `unit`, and `of_queries` that of the queries, the same memory unless
// they have states of their own. States are widened once for each group, about 32 MiB of them at a
// time, and are float32 where Float is: then groups whose states are beyond its range are passed
// over and `beyond`, a mark for each matrix, says so. Returns how many matrices are not finite or
// stand beside a state that is not.
template <class Workspace, class Float = double, class Kernel>
Index per_state(const Batch& batch, const SupportBatch& supports, const MatrixBatch& states,
                bool unit, Kernel&& kernel, const MatrixBatch* query_states = nullptr,
                std::vector<char>* beyond = nullptr) {
  if (batch.count == 0) return 0;
  const MatrixStatus status = matrix_status(batch, supports);
  const Index block_rows = state_rows(batch.n);
  // matrices that follow each other: the smaller of two such numbers divides the larger
  const Index shared =
      query_states == nullptr ? states.shared() : std::min(states.shared(), query_states->shared());
  const Index groups = batch.count / shared;
  const Index of_keys = batch.n * states.columns;
  const Index of_queries = query_states == nullptr ? 0 : batch.queries * states.columns;
  const Index size = std::max<Index>(1, of_keys + of_queries);
  const Index chunk = std::clamp<Index>((Index{1} << 22) / size, 1, std::max<Index>(1, groups));
  const auto blocks_of = [&](Index rows) { return (rows + block_rows - 1) / block_rows; };
  const Index most_blocks = std::max(blocks_of(batch.n), blocks_of(batch.queries));
  AlignedBuffer buffer;
  auto* wide = reinterpret_cast<Float*>(buffer.resize(chunk * size));
  std::vector<Workspace> workspaces(worker_count(chunk * most_blocks));
  std::vector<AlignedBuffer> rows_in_float64(std::is_same_v<Float, double> ? 0 : workspaces.size());
  Index non_finite = 0;

  for (Index first = 0; first < groups; first += chunk) {
    const Index here = std::min(chunk, groups - first);
    std::vector<std::vector<Index>> members(here);
    std::vector<Index> keys(here, 0);
    std::vector<Index> queries(here, 0);
    for (Index g = 0; g < here; ++g) {
      for (Index k = 0; k < shared; ++k) {
        const Index index = (first + g) * shared + k;
        if (status.finite[index] == 0) {
          ++non_finite;
          continue;
        }
        members[g].push_back(index);
        keys[g] = std::max(keys[g], batch.length(index));
        queries[g] = std::max(queries[g], batch.query_length(index));
      }
    }
    const auto for_each_block = [&](const std::vector<Index>& longest, Index rows, auto&& work) {
      const Index blocks = blocks_of(rows);
      run_blocks(here * blocks, 1, [&](Index at, Index, int worker) {
        const Index begin = at % blocks * block_rows;
        const Index end = std::min(begin + block_rows, longest[at / blocks]);
        if (begin < end) work(at / blocks, begin, end, worker);
      });
    };
    std::vector<std::atomic<bool>> broken(here);
    std::vector<std::atomic<bool>> out_of_range(here);
    const auto widen_all = [&](const MatrixBatch& source, const std::vector<Index>& longest,
                               Index rows, Index place) {
      for_each_block(longest, rows, [&](Index g, Index begin, Index end, int worker) {
        const Index offset = source.offset((first + g) * shared) + begin * source.row_stride;
        const Index count = (end - begin) * source.columns;
        Float* out = wide + g * size + place + begin * source.columns;
        double* in_float64 = nullptr;
        if constexpr (std::is_same_v<Float, double>) {
          in_float64 = out;
        } else {
          in_float64 = rows_in_float64[worker].resize(count);
        }
        visit_scalar(source, [&](const auto* data) {
          if (!widen_states(data + offset, source.row_stride, source.column_stride, source.columns,
                            Index{0}, end - begin, unit, in_float64)) {
            broken[g].store(true);
          }
        });
        if constexpr (!std::is_same_v<Float, double>) {
          if (!narrow(in_float64, count, out)) out_of_range[g].store(true);
        }
      });
    };
    widen_all(states, keys, batch.n, 0);
    if (query_states != nullptr) widen_all(*query_states, queries, batch.queries, of_keys);
    for (Index g = 0; g < here; ++g) {
      if (!broken[g].load() && !out_of_range[g].load()) continue;
      queries[g] = 0;
      if (broken[g].load()) {
        non_finite += static_cast<Index>(members[g].size());
      } else {
        for (const Index index : members[g]) (*beyond)[index] = 1;
      }
    }
    for_each_block(queries, batch.queries, [&](Index g, Index begin, Index end, int worker) {
      const Float* of_group = wide + g * size;
      kernel(std::span<const Index>(members[g]), status.supports, of_group,
             query_states == nullptr ? of_group : of_group + of_keys, begin, end,
             begin / block_rows, workspaces[worker]);
    });
  }
  return non_finite;
}

}  // namespace attnscope
