// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Which keys each query can see. `causal`: key j is visible to query i when j <= i; `full`: all keys;
// `mask`: where the boolean view is true (the same size as the matrix, any strides).
struct Support {
  enum class Kind { full, causal, mask };
  Kind kind = Kind::full;
  const bool* mask = nullptr;
  Index mask_row_stride = 0;
  Index mask_column_stride = 0;

  bool visible(Index query, Index key) const {
    switch (kind) {
      case Kind::full:
        return true;
      case Kind::causal:
        return key <= query;
      case Kind::mask:
        return mask[query * mask_row_stride + key * mask_column_stride];
    }
    return true;
  }

  // One past the last key that `query` can see, for loops that skip the masked triangle.
  Index end(Index query, Index n) const { return kind == Kind::causal ? query + 1 : n; }
};

// Judges a matrix by itself: causal when everything above its diagonal is exactly 0 (n >= 2), else full.
template <class Scalar>
Support auto_support(const MatrixView<Scalar>& matrix) {
  Support support;
  support.kind = is_causal(matrix) ? Support::Kind::causal : Support::Kind::full;
  return support;
}

}  // namespace attnscope
