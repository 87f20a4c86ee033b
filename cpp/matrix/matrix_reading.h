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

// The same of some lines, for who uses each while it lies in the cache: of rows, or of columns where these are
// the contiguous ones. `reading` holds what the lines before say and gets what these add; { true, false } asks
// for entries that are not finite alone.
template <class Scalar>
void read_lines(const MatrixView<Scalar>& matrix, Index begin, Index end, MatrixReading& reading);

// Whether the lines of `read_lines` are rows.
template <class Scalar>
bool lines_are_rows(const MatrixView<Scalar>& matrix) {
  return matrix.innerStride() <= matrix.outerStride();
}

}  // namespace attnscope
