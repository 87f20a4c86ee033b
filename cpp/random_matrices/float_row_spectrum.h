// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "linalg/dqds.h"
#include "matrix/matrix_view.h"
#include "random_matrices/spectral_distance.h"

namespace attnscope {

struct FloatRowSpectrumWorkspace {
  AlignedBuffer row;
  AlignedBuffer matrix;
  AlignedBuffer vectors;
  AlignedBuffer bidiagonals;
  DqdsWorkspace dqds;
  std::vector<double> values;  // where `float_row_spectra` leaves them
  std::vector<Index> varying_rows;
};

// Whether float32 takes less time than float64 does with matrices of this size.
bool is_faster_in_float32(Index n);

// The eigenvalues of XXᵀ/n of as many matrices of one size as float_groups_size has
// room for, X as in
// `row_tridiagonals`: ascending, those of matrix k at workspace.values + k·n, after as many zeros
// as rows do not vary; workspace.varying_rows[k] rows vary. They are the squares of singular values
// of X in float32, and float_row_error says how far off those are. A matrix's results do not
// depend on the others. Cost 8n³/3 operations, in float32.
template <class Scalar>
void float_row_spectra(std::span<const MatrixView<Scalar>> matrices, bool causal,
                       FloatRowSpectrumWorkspace& workspace);

// How far the roots of such a spectrum may be off, of n values up to `largest`: measured, not
// proven, at twice the worst seen on maps of trained heads and of random logits, of which small
// roots are off by less than large ones.
RootError float_row_error(Index n, double largest);

}  // namespace attnscope
