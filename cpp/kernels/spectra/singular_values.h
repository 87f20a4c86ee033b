// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "linalg/dqds.h"
#include "matrix/matrix_view.h"

namespace attnscope {

struct SingularValuesWorkspace {
  AlignedBuffer matrices;
  AlignedBuffer rows;
  AlignedBuffer vectors;
  AlignedBuffer bidiagonals;
  DqdsWorkspace dqds;
};

// Matrices that are worked on together: give `singular_values` this many where there are as many.
Index singular_values_width();

// All n singular values of 1 to singular_values_width() matrices of one size, descending; out[k]
// receives those of matrices[k]. Range [0, ‖A‖_F]; absolute error below 1e-12·σ1; n = 1: |a|. A
// matrix's values do not depend on the others. Cost O(n³) each.
template <class Scalar>
void singular_values(std::span<const MatrixView<Scalar>> matrices, std::span<double* const> out,
                     SingularValuesWorkspace& workspace);

}  // namespace attnscope
