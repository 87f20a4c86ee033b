// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "linalg/dqds.h"
#include "matrix/matrix_view.h"

namespace attnscope {

struct SingularValuesWorkspace {
  AlignedBuffer matrices;
  AlignedBuffer float_matrices;
  AlignedBuffer lines;
  AlignedBuffer rows;
  AlignedBuffer vectors;
  AlignedBuffer bidiagonals;
  AlignedBuffer rectangle;
  AlignedBuffer factors;
  DqdsWorkspace dqds;
};

// Matrices that are worked on together: give `singular_values` this many where there are as many.
Index singular_values_width(Precision precision = Precision::exact);

// All r = min(rows, columns) singular values of 1 to singular_values_width() matrices of one size,
// descending; out[k] receives those of matrices[k]. Range [0, ‖A‖_F]; absolute error below
// 1e-12·σ1; r = 1: the norm. A matrix's values do not depend on the others. A rectangle is factored
// to a square first. `fast`, of squares, is float32 arithmetic up to 96 rows and from 257 on, and
// the eigenvalues of AAᵀ between: absolute error below 1e-5·σ1, and an effective rank read off the
// values is within 1e-3. A matrix with so many values near 0 that it would not be is measured
// exactly; returns how many there were. Cost O(r²·max(rows, columns)) each.
template <class Scalar>
Index singular_values(std::span<const MatrixView<Scalar>> matrices, std::span<double* const> out,
                      SingularValuesWorkspace& workspace, Precision precision = Precision::exact);

}  // namespace attnscope
