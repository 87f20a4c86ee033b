// SPDX-License-Identifier: MIT
#pragma once

#include "bindings/batched.h"
#include "simd/memory.h"

namespace attnscope {

// The memory of matrix `next`, where one is known and its rows lie behind each other.
template <class Scalar>
Ahead memory_of(const Batch& batch, const MatrixView<Scalar>& view, Index next) {
  if (next < 0 || batch.column_stride != 1 || batch.row_stride < batch.n) return {};
  const Index entries = (view.rows() - 1) * batch.row_stride + view.rows();
  const auto* from = static_cast<const Scalar*>(batch.data) + batch.offset(next);
  return {from, entries * static_cast<Index>(sizeof(Scalar))};
}

}  // namespace attnscope
