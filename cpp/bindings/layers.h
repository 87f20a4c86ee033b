// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "bindings/batched.h"

// The loop over layers: all heads of a layer together, in blocks of rows.
namespace attnscope {

// Which matrices of a batch are finite, and each one's support, judged once by all workers.
struct MatrixStatus {
  std::vector<char> finite;
  std::vector<Support> supports;
};

inline MatrixStatus matrix_status(const Batch& batch, const SupportBatch& supports) {
  MatrixStatus status;
  status.finite.resize(static_cast<std::size_t>(batch.count));
  status.supports.resize(static_cast<std::size_t>(batch.count));
  run_blocks(batch.count, block_size(batch, 1), [&](Index begin, Index end, int) {
    for (Index at = begin; at < end; ++at) {
      visit_matrix(batch, at, [&](const auto& view, Index index) {
        const auto slot = static_cast<std::size_t>(index);
        status.finite[slot] = all_finite(view) ? 1 : 0;
        if (status.finite[slot] != 0) status.supports[slot] = supports.of(index, view);
      });
    }
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
  std::vector<Workspace> workspaces(static_cast<std::size_t>(worker_count(count)));
  run_blocks(count, 1, [&](Index at, Index, int worker) {
    const Block& block = blocks[static_cast<std::size_t>(at)];
    visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
      std::vector<MatrixView<Scalar>> views;
      views.reserve(static_cast<std::size_t>(heads));
      for (Index h = 0; h < heads; ++h) {
        views.push_back(view_of(batch, data, block.layer * heads + h));
      }
      const std::span<const Support> own(status.supports.data() + block.layer * heads,
                                         static_cast<std::size_t>(heads));
      kernel(std::span<const MatrixView<Scalar>>(views), own, block.layer, block.begin, block.end,
             workspaces[static_cast<std::size_t>(worker)]);
    });
  });
  return non_finite;
}

}  // namespace attnscope
