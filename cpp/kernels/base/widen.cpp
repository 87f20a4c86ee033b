// SPDX-License-Identifier: MIT
#include "kernels/base/widen.h"

#include <algorithm>
#include <cmath>

namespace attnscope {

double largest_magnitude(const double* values, Index count) {
  // Eight strands, because one maximum waits for the one before.
  double largest[8] = {};
  Index j = 0;
  for (; j + 8 <= count; j += 8) {
    for (Index strand = 0; strand < 8; ++strand) {
      const double value = std::abs(values[j + strand]);
      largest[strand] = value > largest[strand] ? value : largest[strand];
    }
  }
  for (; j < count; ++j) largest[0] = std::max(largest[0], std::abs(values[j]));
  return *std::max_element(largest, largest + 8);
}

double safe_scale(double largest) {
  if (largest == 0.0 || (largest > 1e-30 && largest < 1e30)) return 1.0;
  int exponent = 0;
  std::frexp(largest, &exponent);
  // 2^1022 is the largest power of two whose square root's neighbours are all normal numbers.
  return std::ldexp(1.0, std::clamp(-exponent, -1022, 1022));
}

template <class Scalar>
void widen_row(const MatrixView<Scalar>& matrix, Index i, double* out) {
  const Index n = matrix.cols();
  const Index column_stride = matrix.innerStride();
  const Scalar* in = matrix.data() + i * matrix.outerStride();
  if (column_stride == 1) {
    for (Index j = 0; j < n; ++j) out[j] = static_cast<double>(in[j]);
  } else {
    for (Index j = 0; j < n; ++j) out[j] = static_cast<double>(in[j * column_stride]);
  }
}

template <class Scalar>
double widen(const MatrixView<Scalar>& matrix, double* out, Index ld) {
  const Index n = matrix.rows();
  double largest = 0.0;
  for (Index i = 0; i < n; ++i) {
    double* row = out + i * ld;
    widen_row(matrix, i, row);
    largest = std::max(largest, largest_magnitude(row, n));
  }
  const double scale = safe_scale(largest);
  if (scale != 1.0) {
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < n; ++j) out[i * ld + j] *= scale;
    }
  }
  return scale;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                         \
  template void widen_row<Scalar>(const MatrixView<Scalar>&, Index, double*); \
  template double widen<Scalar>(const MatrixView<Scalar>&, double*, Index);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
