// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "linalg/lazy/lazy_head.h"

// Heads of a layer whose mean is measured.
namespace attnscope {

// Heads of equal sizes and positions, and what their rows sum to.
struct LazyHeads {
  const LazyHead* heads = nullptr;
  Index count = 0;
  const double* log_z = nullptr;  // [count, queries]
  double* divergence = nullptr;   // Σ A log(A / mean) [count, queries]; null: not asked for
};

struct LazyHeadsWorkspace {
  std::vector<AlignedBuffer> packed;  // of each head
  AlignedBuffer widened, exponents, weights;
};

}  // namespace attnscope
