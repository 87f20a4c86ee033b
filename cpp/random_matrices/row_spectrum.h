// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "linalg/dqds.h"
#include "matrix/matrix_view.h"

namespace attnscope {

// Bounds the error of each eigenvalue, as a share of the largest: measured, not proven, at twice
// the worst seen on maps of trained heads and of random logits.
inline constexpr double kRowSpectrumError = 2e-15;

struct RowSpectrumWorkspace {
  AlignedBuffer rows;
  AlignedBuffer lines;
  AlignedBuffer gram;
  AlignedBuffer vectors;
  AlignedBuffer tridiagonals;  // where `row_tridiagonals` leaves them
  DqdsWorkspace dqds;
  std::vector<double> values;  // where `row_spectra` leaves them
  std::vector<Index> varying_rows;
  std::vector<double> errors;
};

// XXᵀ/n of 1 to dqds_width() matrices of one size, made tridiagonal, X_ij = (A_ij − m_i)/s_i over
// the keys that query i sees (`causal`: j <= i, otherwise all) and 0 elsewhere and in rows without
// variation. Diagonals and what is beside them stand one after the other in
// workspace.tridiagonals, as `tridiagonal_eigenvalues` takes them; workspace.varying_rows[k] rows
// of matrix k vary, and each of its eigenvalues is off by at most workspace.errors[k], however
// small: the error is that of forming XXᵀ, which costs half as much as reducing X,
// kRowSpectrumError of the largest eigenvalue. A matrix's results do not depend on the others. Cost
// 5n³/3 operations when causal, 7n³/3 otherwise.
template <class Scalar>
void row_tridiagonals(std::span<const MatrixView<Scalar>> matrices, bool causal,
                      RowSpectrumWorkspace& workspace);

// The eigenvalues of what row_tridiagonals left of `count` matrices of size n: ascending, those of
// matrix k at workspace.values + k·n, after as many zeros as rows do not vary; besides the error
// there, a relative n·1e-15.
void row_spectra(Index n, Index count, RowSpectrumWorkspace& workspace);

}  // namespace attnscope
