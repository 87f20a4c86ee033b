// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "matrix/columns/pair_moments.h"
#include "matrix/matrix_view.h"
#include "simd/memory.h"

// Does attention follow the geometry of the states? Pearson correlation between A_ij and the cosine
// of tokens i and j, over visible pairs i ≠ j.
namespace attnscope {

struct AlignmentWorkspace {
  RowScratch rows;
  AlignedBuffer cosines;
  AlignedBuffer tiles;
  AlignedBuffer cosine_sums;
  AlignedBuffer entry_sums;
  AlignedBuffer mirrored;
  AlignedBuffer moments;
  AlignedBuffer copies;
  std::vector<double> weights;
  std::vector<double> row_weights;
  std::vector<double> directed;
  std::vector<double> directed_queries;
};

// One head's map, what its queries see, and the keys to leave out (null: none).
template <class Scalar>
struct AlignedHead {
  MatrixView<Scalar> attention;
  Support support;
  const bool* without = nullptr;
  Index without_stride = 0;
};

// Moments of the pairs of at most state_rows(n) queries [begin, end) for heads that share one
// state: `unit_states` [keys, width], rows of norm 1 (widen_states), a row of zeros having no
// direction and no pairs; `unit_queries` [queries, width], which in a square map are the keys'. The
// cosines are computed once for all heads; a head's moments do not depend on the others. Cost
// O(rows·n·(width + heads)), half of it where all are causal or see all keys, no n x n memory. Of
// float32 states the cosines have errors of about 1e-7.
template <class Scalar, class Float>
void alignment_moments(std::span<const AlignedHead<Scalar>> heads, const Float* unit_states,
                       const Float* unit_queries, Index width, Index begin, Index end,
                       PairMoments* out, AlignmentWorkspace& workspace);

// The correlation of all pairs, in [−1, 1]; NaN for fewer than two pairs, or where attention or the
// cosines do not vary (the cosines of float64 states are known to 1e-15).
double alignment_of(std::span<const PairMoments> parts);

// The number of all pairs.
double pair_count(std::span<const PairMoments> parts);

// The standard deviation of the cosines of all pairs; NaN without any.
double cosine_spread(std::span<const PairMoments> parts);

}  // namespace attnscope
