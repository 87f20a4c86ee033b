// SPDX-License-Identifier: MIT
#pragma once

#include "bindings/batched.h"

namespace attnscope {

// Subsets of the points of a cloud, [count, n] flags in rows of contiguous memory; one subset of
// all points where none is given.
struct Subsets {
  FlagBatch flags;
  Index count = 1;

  const bool* of(Index subset) const { return flags.at(subset); }
  bool has_flags() const { return flags.data != nullptr; }
};

// `subsets`: None, or a contiguous boolean CPU tensor [count, n]; `count` is its first size.
inline Subsets make_subsets(Argument subsets, Index count, Index n) {
  return {make_flags({count}, n, subsets), count};
}

// The shape of a result: the leading axes of the batch, and one of the subsets before them.
inline std::vector<Index> leading_of(const Batch& batch, const Subsets& subsets) {
  std::vector<Index> leading = batch.sizes;
  if (subsets.has_flags()) leading.insert(leading.begin(), subsets.count);
  return leading;
}

}  // namespace attnscope
