// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "bindings/layers.h"
#include "matrix/states.h"
#include "simd/aligned_buffer.h"

// The loop over maps with token states beside them.
namespace attnscope {

// Calls kernel(group, states, begin, end, block, workspace) for blocks of at most `block_rows` rows
// of every group of matrices that share one state: `group` holds the indices of its finite
// matrices, `states` [n, width] the state in float64, its rows scaled to norm 1 where `unit`.
// States are widened once for each group, about 32 MiB of them at a time. Returns how many matrices
// are not finite or stand beside a state that is not.
template <class Workspace, class Kernel>
Index per_state(const Batch& batch, const MatrixStatus& status, const StateBatch& states, bool unit,
                Index block_rows, Kernel&& kernel) {
  if (batch.count == 0) return 0;
  const Index shared = states.shared();
  const Index groups = batch.count / shared;
  const Index size = std::max<Index>(1, batch.n * states.width);
  const Index chunk = std::clamp<Index>((Index{1} << 22) / size, 1, std::max<Index>(1, groups));
  const Index blocks = (batch.n + block_rows - 1) / block_rows;
  AlignedBuffer buffer;
  double* wide = buffer.resize(chunk * size);
  std::vector<Workspace> workspaces(static_cast<std::size_t>(worker_count(chunk * blocks)));
  Index non_finite = 0;

  for (Index first = 0; first < groups; first += chunk) {
    const Index here = std::min(chunk, groups - first);
    std::vector<std::vector<Index>> members(static_cast<std::size_t>(here));
    std::vector<Index> longest(static_cast<std::size_t>(here), 0);
    for (Index g = 0; g < here; ++g) {
      for (Index k = 0; k < shared; ++k) {
        const Index index = (first + g) * shared + k;
        if (status.finite[static_cast<std::size_t>(index)] == 0) {
          ++non_finite;
          continue;
        }
        members[g].push_back(index);
        longest[g] = std::max(longest[g], batch.length(index));
      }
    }
    std::vector<std::atomic<bool>> broken(static_cast<std::size_t>(here));
    run_blocks(here * blocks, 1, [&](Index at, Index, int) {
      const Index g = at / blocks;
      const Index begin = at % blocks * block_rows;
      const Index end = std::min(begin + block_rows, longest[g]);
      if (begin >= end) return;
      const Index offset = states.offset((first + g) * shared);
      visit_scalar(states, [&](const auto* data) {
        if (!widen_states(data + offset, states.row_stride, states.column_stride, states.width, begin,
                          end, unit, wide + g * size)) {
          broken[g].store(true);
        }
      });
    });
    for (Index g = 0; g < here; ++g) {
      if (!broken[g].load()) continue;
      non_finite += static_cast<Index>(members[g].size());
      longest[g] = 0;
    }
    run_blocks(here * blocks, 1, [&](Index at, Index, int worker) {
      const Index g = at / blocks;
      const Index begin = at % blocks * block_rows;
      const Index end = std::min(begin + block_rows, longest[g]);
      if (begin >= end) return;
      kernel(std::span<const Index>(members[g]), wide + g * size, begin, end, begin / block_rows,
             workspaces[static_cast<std::size_t>(worker)]);
    });
  }
  return non_finite;
}

}  // namespace attnscope
