// SPDX-License-Identifier: MIT
#include "matrix/widen.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "simd/lanes.h"

namespace attnscope {

double largest_magnitude(const double* values, Index count) {
  Lanes even{}, odd{};
  const auto at = [values](Index j) {
    LaneMask bits;
    std::memcpy(&bits, values + j, sizeof(bits));
    return reinterpret_cast<Lanes>(bits & std::numeric_limits<long>::max());
  };
  Index j = 0;
  for (; j + 2 * kPackWidth <= count; j += 2 * kPackWidth) {
    even = larger(even, at(j));
    odd = larger(odd, at(j + kPackWidth));
  }
  even = larger(even, odd);
  double largest = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) largest = std::max(largest, even[lane]);
  for (; j < count; ++j) largest = std::max(largest, std::abs(values[j]));
  return largest;
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
