// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <vector>

#include "matrix/matrix_view.h"

// Hellinger distances between the rows of a matrix, ‖√a_i − √a_j‖/√2. Hellinger 1909.
namespace attnscope {

// √ of every entry, row by row; negative entries count as 0.
template <class Scalar>
void take_roots(const MatrixView<Scalar>& attention, std::vector<double>& roots) {
  const Index n = attention.rows();
  roots.resize(static_cast<std::size_t>(n * n));
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      const double entry = static_cast<double>(attention(i, j));
      roots[i * n + j] = entry > 0.0 ? std::sqrt(entry) : 0.0;
    }
  }
}

inline double hellinger_distance(const std::vector<double>& roots, Index n, Index i, Index j) {
  const Eigen::Map<const Eigen::ArrayXd> a(roots.data() + i * n, n);
  const Eigen::Map<const Eigen::ArrayXd> b(roots.data() + j * n, n);
  return std::sqrt(0.5 * (a - b).square().sum());
}

}  // namespace attnscope
