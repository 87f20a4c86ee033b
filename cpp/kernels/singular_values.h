// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "kernels/base/matrix_view.h"

namespace attnscope {

// Scratch that a thread reuses over a batch.
struct SingularValuesWorkspace {
  std::vector<double> matrix;
};

// All n singular values of one matrix, descending, to `out`. Range [0, ‖A‖_F]; absolute error below
// 1e-12·σ1; n = 1: |a|. Cost O(n³).
template <class Scalar>
void singular_values(const MatrixView<Scalar>& matrix, double* out, SingularValuesWorkspace& workspace);

// The same for n rows of float64 entries `ld` apart, which are overwritten.
void singular_values_in_place(double* matrix, Index n, Index ld, double* out,
                              SingularValuesWorkspace& workspace);

}  // namespace attnscope
