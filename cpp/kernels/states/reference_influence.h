// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "matrix/matrix_view.h"
#include "simd/memory.h"

// How much of what a head writes comes from a set of reference tokens.
namespace attnscope {

struct InfluenceWorkspace {
  RowScratch rows;
  AlignedBuffer attention;
  AlignedBuffer outputs;
  AlignedBuffer products;
  AlignedBuffer norms;
  std::vector<Index> marked;
};

// Token states [keys, width] as products read them, without a copy: panels of as many numbers of a
// state as a tile is wide, each panel key after key, zeros behind the last number.
template <class Float>
struct StatePanels {
  const Float* data;
  Index keys;
  Index width;
};

// How many numbers are in all panels.
template <class Float>
Index size_of_panels(Index keys, Index width);

// Writes the keys [begin, end), whose states stand at `rows` [end - begin, width], to `panels`.
template <class Float>
void put_in_panels(const Float* rows, Index begin, Index end, Index keys, Index width,
                   Float* panels);

struct Influence {
  double* relative_magnitude;
  double* directional;
  double* information_change;
};

// For queries begin <= i < end, at most state_rows(n), that stand outside the reference R
// (reference[j·stride] of key j), with c_R = Σ_{j∈R} A_ij s_j, c_N the rest and c = c_R + c_N:
// ‖c_R‖/‖c‖ (>= 0), cos(c_R, c) in [−1, 1], 1 − cos(c, c_N) in [0, 2], to out at i. Left as it is
// for queries in R; NaN where a norm that divides is 0. `panels`: the states of all keys, in
// float64, or in float32: then norms have relative errors below 1e-5, and false is returned, the
// answers being worth nothing, where a sum is so much smaller than its terms that they have not.
// Cost O(rows·n·width), no n x n memory.
template <class Scalar, class Float>
bool reference_influence(const MatrixView<Scalar>& attention, const Support& support,
                         const StatePanels<Float>& states, const bool* reference, Index stride,
                         Index begin, Index end, const Influence& out,
                         InfluenceWorkspace& workspace);

}  // namespace attnscope
