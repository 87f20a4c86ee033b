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
  AlignedBuffer tridiagonals;
  DqdsWorkspace dqds;
  std::vector<double> values;  // where `row_spectra` leaves them
  std::vector<Index> kept;
};

// Eigenvalues of XXᵀ/n of 1 to dqds_width() matrices of one size, X_ij = (A_ij − m_i)/s_i over the
// keys that query i sees (`causal`: j <= i, otherwise all) and 0 elsewhere and in rows without
// variation: ascending, those of matrix k at workspace.values + k·n, after as many zeros as rows do
// not vary; workspace.kept[k] rows do. The error is that of forming XXᵀ, which costs half as much
// as reducing X: kRowSpectrumError of the largest eigenvalue for every one, however small, besides
// a relative n·1e-15. A matrix's values do not depend on the others. Cost 5n³/3 operations when
// causal, 7n³/3 otherwise.
template <class Scalar>
void row_spectra(std::span<const MatrixView<Scalar>> matrices, bool causal,
                 RowSpectrumWorkspace& workspace);

}  // namespace attnscope
