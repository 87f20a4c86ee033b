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
      const std::span<const Support> of_layer(status.supports.data() + block.layer * heads, heads);
      kernel(std::span<const MatrixView<Scalar>>(views), of_layer, block.layer, block.begin,
             block.end, workspaces[worker]);
    });
  });
  return non_finite;
}

// How a kernel reads token states: row by row, as they are widened.
template <class Float>
struct StateRows {
  static constexpr bool kInRows = true;
  static Index size(Index keys, Index width) { return keys * width; }
};

// Token states beside the maps of a batch: groups of matrices that share one state, and their rows
// in Float, scaled to norm 1 where `unit`, in a Layout: `size` of its numbers and, where it is not
// rows, `put` of rows [begin, end).
template <class Float, class Layout>
class StateGroups {
 public:
  struct Group {
    std::vector<Index> members;  // its finite matrices
    Index keys = 0;              // rows of states that they need
    Index queries = 0;
  };

  StateGroups(const Batch& batch, const MatrixStatus& status, const MatrixBatch& states,
              const MatrixBatch* query_states, bool unit)
      : batch_(batch),
        status_(status),
        states_(states),
        query_states_(query_states),
        unit_(unit),
        // matrices that follow each other: the smaller of two such numbers divides the larger
        shared_(query_states == nullptr ? states.shared()
                                        : std::min(states.shared(), query_states->shared())),
        of_keys_(Layout::size(batch.n, states.columns)),
        size_(std::max<Index>(
            1, of_keys_ + (query_states == nullptr ? 0 : batch.queries * states.columns))) {}

  Index count() const { return batch_.count / shared_; }
  // Numbers of the states of one group.
  Index size() const { return size_; }

  // Group g; adds to `non_finite` how many of its matrices are not.
  Group group(Index g, std::atomic<Index>& non_finite) const {
    Group group;
    for (Index index = g * shared_; index < (g + 1) * shared_; ++index) {
      if (status_.finite[index] == 0) {
        ++non_finite;
        continue;
      }
      group.members.push_back(index);
      group.keys = std::max(group.keys, batch_.length(index));
      group.queries = std::max(group.queries, batch_.query_length(index));
    }
    return group;
  }

  // What widening flaws.
  struct Flaws {
    std::atomic<bool> broken{false};        // an entry that is not finite
    std::atomic<bool> out_of_range{false};  // of Float
  };

  struct Scratch {
    AlignedBuffer float64;
    AlignedBuffer rows;
  };

  // Writes rows [begin, end) of the keys' states of group g, as far as it needs them, to `out`,
  // which holds size() numbers.
  void widen_keys(Index g, const Group& group, Index begin, Index end, Float* out, Flaws& flaws,
                  Scratch& scratch) const {
    widen(states_, g, begin, std::min(end, group.keys), out, flaws, scratch);
  }
  // The same of the queries' states, where they have some of their own.
  void widen_queries(Index g, const Group& group, Index begin, Index end, Float* out, Flaws& flaws,
                     Scratch& scratch) const {
    if (query_states_ == nullptr) return;
    widen(*query_states_, g, begin, std::min(end, group.queries), out + of_keys_, flaws, scratch);
  }

  const Float* of_queries(const Float* of_group) const {
    return query_states_ == nullptr ? of_group : of_group + of_keys_;
  }

 private:
  void widen(const MatrixBatch& source, Index g, Index begin, Index end, Float* out, Flaws& flaws,
             Scratch& scratch) const {
    if constexpr (Layout::kInRows) {
      if (begin < end)
        widen_rows(source, g, begin, end, out + begin * source.columns, flaws, scratch.float64);
    } else {
      // so few rows at a time that they stay in the first-level cache until they are put
      const Index step = std::max<Index>(1, (Index{1} << 11) / std::max<Index>(1, source.columns));
      auto* rows = reinterpret_cast<Float*>(scratch.rows.resize(step * source.columns));
      for (; begin < end; begin += step) {
        const Index stop = std::min(begin + step, end);
        widen_rows(source, g, begin, stop, rows, flaws, scratch.float64);
        Layout::put(rows, begin, stop, batch_.n, source.columns, out);
      }
    }
  }

  // Rows [begin, end), the first of them to `out`.
  void widen_rows(const MatrixBatch& source, Index g, Index begin, Index end, Float* out,
                  Flaws& flaws, AlignedBuffer& float64) const {
    const Index offset = source.offset(g * shared_) + begin * source.row_stride;
    const Index count = (end - begin) * source.columns;
    double* in_float64 = nullptr;
    if constexpr (std::is_same_v<Float, double>) {
      in_float64 = out;
    } else {
      in_float64 = float64.resize(count);
    }
    visit_scalar(source, [&](const auto* data) {
      if (!widen_states(data + offset, source.row_stride, source.column_stride, source.columns,
                        Index{0}, end - begin, unit_, in_float64)) {
        flaws.broken.store(true);
      }
    });
    if constexpr (!std::is_same_v<Float, double>) {
      if (!narrow(in_float64, count, out)) flaws.out_of_range.store(true);
    }
  }

  const Batch& batch_;
  const MatrixStatus& status_;
  const MatrixBatch& states_;
  const MatrixBatch* query_states_;
  bool unit_;
  Index shared_;
  Index of_keys_;
  Index size_;
};

// Calls kernel(group, supports, states, of_queries, begin, end, block, workspace) for blocks of
// state_rows(n) rows of every group of matrices that share one state: `group` holds the indices of
// its finite matrices, `supports` those of all, `states` [keys, width] the state in float64 and in
// its Layout, its rows scaled to norm 1 where `unit`, and `of_queries` that of the queries, the
// same memory unless they have states of their own. States are widened once for each group, by the
// worker that reads them where there are enough groups for all, and are float32 where Float is:
// then groups whose states are beyond its range are passed over and `beyond`, a mark for each
// matrix, says so. Returns how many matrices are not finite or stand beside a state that is not.
template <class Workspace, class Float = double, class Layout = StateRows<Float>, class Kernel>
Index per_state(const Batch& batch, const SupportBatch& supports, const MatrixBatch& states,
                bool unit, Kernel&& kernel, const MatrixBatch* query_states = nullptr,
                std::vector<char>* beyond = nullptr) {
  if (batch.count == 0) return 0;
  using Groups = StateGroups<Float, Layout>;
  const MatrixStatus status = matrix_status(batch, supports);
  const Groups groups(batch, status, states, query_states, unit);
  const Index block_rows = state_rows(batch.n);
  const auto blocks_of = [&](Index rows) { return (rows + block_rows - 1) / block_rows; };
  const Index most_blocks = std::max(blocks_of(batch.n), blocks_of(batch.queries));
  std::atomic<Index> non_finite{0};
  // Whether the states of a group can be used; counts and marks its matrices where not.
  const auto is_usable = [&](const typename Groups::Group& group,
                             const typename Groups::Flaws& flaws) {
    if (flaws.broken.load()) {
      non_finite += static_cast<Index>(group.members.size());
    } else if (flaws.out_of_range.load()) {
      for (const Index index : group.members) (*beyond)[index] = 1;
    }
    return !flaws.broken.load() && !flaws.out_of_range.load();
  };
  const auto call = [&](const typename Groups::Group& group, const Float* wide, Index begin,
                        Workspace& workspace) {
    kernel(std::span<const Index>(group.members), status.supports, wide, groups.of_queries(wide),
           begin, std::min(begin + block_rows, group.queries), begin / block_rows, workspace);
  };
  std::vector<Workspace> workspaces(worker_count(groups.count() * most_blocks));
  std::vector<AlignedBuffer> buffers(workspaces.size());
  std::vector<typename Groups::Scratch> scratch(workspaces.size());

  // Groups that keep every worker busy to the end: none waits for the states of another's.
  constexpr Index kGroupsPerWorker = 4;
  if (workspaces.size() == 1 || most_blocks == 1 ||
      groups.count() >= kGroupsPerWorker * static_cast<Index>(workspaces.size())) {
    run_blocks(groups.count(), 1, [&](Index g, Index, int worker) {
      const typename Groups::Group group = groups.group(g, non_finite);
      if (group.members.empty()) return;
      auto* wide = reinterpret_cast<Float*>(buffers[worker].resize(groups.size()));
      typename Groups::Flaws flaws;
      groups.widen_keys(g, group, 0, group.keys, wide, flaws, scratch[worker]);
      groups.widen_queries(g, group, 0, group.queries, wide, flaws, scratch[worker]);
      if (!is_usable(group, flaws)) return;
      for (Index begin = 0; begin < group.queries; begin += block_rows)
        call(group, wide, begin, workspaces[worker]);
    });
    return non_finite.load();
  }

  // A group after the other, whose blocks of rows are shared out.
  auto* wide = reinterpret_cast<Float*>(buffers[0].resize(groups.size()));
  for (Index g = 0; g < groups.count(); ++g) {
    const typename Groups::Group group = groups.group(g, non_finite);
    if (group.members.empty()) continue;
    typename Groups::Flaws flaws;
    run_blocks(most_blocks, 1, [&](Index at, Index, int worker) {
      const Index begin = at * block_rows;
      groups.widen_keys(g, group, begin, begin + block_rows, wide, flaws, scratch[worker]);
      groups.widen_queries(g, group, begin, begin + block_rows, wide, flaws, scratch[worker]);
    });
    if (!is_usable(group, flaws)) continue;
    run_blocks(blocks_of(group.queries), 1, [&](Index at, Index, int worker) {
      call(group, wide, at * block_rows, workspaces[worker]);
    });
  }
  return non_finite.load();
}

}  // namespace attnscope
