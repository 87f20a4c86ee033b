// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "simd/memory.h"

// Attention of one head that is given by its queries and keys. A score is s = scaling·q·k, capped
// to c·tanh(s/c), less slope·|i − j|, plus bias; a weight is e^(s − log Z) over the visible keys
// and the learned sink, if any. Key j is visible to a query at position i when j < length, and j <=
// i where causal, and i − j < window, and j − i <= after, and the mask says so.
namespace attnscope {

enum class VectorType { float16, bfloat16, float32, float64 };

// Rows of numbers in the caller's memory; strides count numbers.
struct NumberRows {
  const void* data = nullptr;
  VectorType type = VectorType::float32;
  Index row_stride = 0;
  Index column_stride = 0;
};

// One head.
struct LazyHead {
  NumberRows query;  // [queries, width]
  NumberRows key;    // [keys, width]
  Index queries = 0;
  Index keys = 0;
  Index width = 0;
  const std::int64_t* positions =
      nullptr;       // of the queries among the keys; null: r + keys − queries
  Index length = 0;  // keys from here on, and queries at them, are padding
  bool causal = true;
  Index window = 0;  // 0: none
  Index after = -1;  // below 0: none
  double scaling = 1.0;
  double softcap = 0.0;  // 0: none
  double slope = 0.0;
  double sink_logit = 0.0;  // −infinity: none
  NumberRows bias;          // [queries, keys]; null: none
  const bool* mask = nullptr;
  Index mask_row_stride = 0;
  Index mask_column_stride = 0;

  Index position(Index query) const {
    return positions == nullptr ? query + keys - queries : positions[query];
  }
  // Whether there is a last key that a query sees, and how far behind its position it is.
  bool sees_no_later() const { return causal || after >= 0; }
  Index latest() const { return causal ? 0 : after; }
  bool is_padding(Index query) const { return position(query) >= length; }
  bool sees(Index query, Index key) const {
    const Index distance = position(query) - key;
    if (key >= length || (sees_no_later() && distance < -latest()) ||
        (window > 0 && distance >= window)) {
      return false;
    }
    return mask == nullptr || mask[query * mask_row_stride + key * mask_column_stride];
  }
};

}  // namespace attnscope
