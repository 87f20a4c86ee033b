// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// What `all_finite` and `is_causal` say, in one read; a matrix that is not finite is not causal either.
struct MatrixReading {
  bool finite;
  bool causal;
};

template <class Scalar>
MatrixReading read_once(const MatrixView<Scalar>& matrix);

}  // namespace attnscope
