// SPDX-License-Identifier: MIT
#pragma once

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
    const Index n = batch.length(layer * heads);
    for (Index begin = 0; begin < n; begin += rows) {
      blocks.push_back({layer, begin, std::min(n, begin + rows)});
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

// Calls kernel(group, supports, states, begin, end, block, workspace) for blocks of state_rows(n)
// rows of every group of matrices that share one state: `group` holds the indices of its finite
// matrices, `supports` those of all, `states` [n, width] the state in float64, its rows scaled to
// norm 1 where `unit`. States are widened once for each group, about 32 MiB of them at a time.
// Returns how many matrices are not finite or stand beside a state that is not.
template <class Workspace, class Kernel>
Index per_state(const Batch& batch, const SupportBatch& supports, const MatrixBatch& states,
                bool unit, Kernel&& kernel) {
  if (batch.count == 0) return 0;
  const MatrixStatus status = matrix_status(batch, supports);
  const Index block_rows = state_rows(batch.n);
  const Index shared = states.shared();
  const Index groups = batch.count / shared;
  const Index size = std::max<Index>(1, batch.n * states.columns);
  const Index chunk = std::clamp<Index>((Index{1} << 22) / size, 1, std::max<Index>(1, groups));
  const Index blocks = (batch.n + block_rows - 1) / block_rows;
  AlignedBuffer buffer;
  double* wide = buffer.resize(chunk * size);
  std::vector<Workspace> workspaces(worker_count(chunk * blocks));
  Index non_finite = 0;

  for (Index first = 0; first < groups; first += chunk) {
    const Index here = std::min(chunk, groups - first);
    std::vector<std::vector<Index>> members(here);
    std::vector<Index> longest(here, 0);
    for (Index g = 0; g < here; ++g) {
      for (Index k = 0; k < shared; ++k) {
        const Index index = (first + g) * shared + k;
        if (status.finite[index] == 0) {
          ++non_finite;
          continue;
        }
        members[g].push_back(index);
        longest[g] = std::max(longest[g], batch.length(index));
      }
    }
    const auto for_each_block = [&](auto&& work) {
      run_blocks(here * blocks, 1, [&](Index at, Index, int worker) {
        const Index begin = at % blocks * block_rows;
        const Index end = std::min(begin + block_rows, longest[at / blocks]);
        if (begin < end) work(at / blocks, begin, end, worker);
      });
    };
    std::vector<std::atomic<bool>> broken(here);
    for_each_block([&](Index g, Index begin, Index end, int) {
      const Index offset = states.offset((first + g) * shared);
      visit_scalar(states, [&](const auto* data) {
        if (!widen_states(data + offset, states.row_stride, states.column_stride, states.columns,
                          begin, end, unit, wide + g * size)) {
          broken[g].store(true);
        }
      });
    });
    for (Index g = 0; g < here; ++g) {
      if (!broken[g].load()) continue;
      non_finite += static_cast<Index>(members[g].size());
      longest[g] = 0;
    }
    for_each_block([&](Index g, Index begin, Index end, int worker) {
      kernel(std::span<const Index>(members[g]), status.supports, wide + g * size, begin, end,
             begin / block_rows, workspaces[worker]);
    });
  }
  return non_finite;
}

}  // namespace attnscope
