// SPDX-License-Identifier: MIT
#pragma once

#include <type_traits>
#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

// The type a kernel computes with after reading a Scalar: exact for all four element types.
template <class Scalar>
using Wide = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

// Scratch of what reads a matrix row by row: at most 16 rows of it, never the matrix.
struct RowScratch {
  std::vector<float> floats;
  std::vector<double> doubles;
  std::vector<double> sums;  // of columns

  template <class T>
  std::vector<T>& of() {
    if constexpr (std::is_same_v<T, double>) {
      return doubles;
    } else {
      return floats;
    }
  }
};

}  // namespace attnscope
