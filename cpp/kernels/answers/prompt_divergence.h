// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

// The answer's ties to the prompt. With w_ij = max(A_ij, A_ji) capped at 1 and d = 1 - w, the
// prompt [0, start) is one vertex whose distance to answer token i is the smallest d_ij, j < start.
//  per_token  total/r, r = stop - start, in [0, 1]
//  total      the length of the minimum spanning tree over the prompt and the r answer tokens
//  star       the mean distance of an answer token to the prompt, at least per_token
struct PromptDivergence {
  double per_token;
  double total;
  double star;
};

// The complete graph over the answer's tokens, in the type that compares weights.
template <class Float>
struct PromptGraph {
  std::vector<Float> rows;    // the answer's block of the map, where it is not read in place
  std::vector<Float> square;  // similarities among the answer's tokens
  std::vector<Float> best;    // largest similarity of each token to the tree
  std::vector<Float> cap;     // ∞ outside the tree, −∞ inside
};

struct PromptWorkspace {
  RowScratch rows;
  PromptGraph<float> narrow;
  PromptGraph<double> wide;

  PromptGraph<float>& graph(float) { return narrow; }
  PromptGraph<double>& graph(double) { return wide; }
};

// The numbers of the answer [start, stop), 0 <= start < stop <= n; NaN without a prompt. The rows
// [first_row, n) exist, first_row <= start; the others count as 0, which they are under a causal
// mask. Entries that are not visible count as 0; with `find_support` all entries count. Returns
// whether all entries are finite; where not, `out` is not written. O(r·stop), by Prim's algorithm.
// Bazarova et al., Hallucination detection in LLMs with topological divergence, 2025.
template <class Scalar>
bool prompt_divergence(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
                       const Support& support, Index start, Index stop, PromptDivergence& out,
                       PromptWorkspace& workspace);

}  // namespace attnscope
