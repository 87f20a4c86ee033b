// SPDX-License-Identifier: MIT
#include "kernels/base/matrix_view.h"

#include <cmath>
#include <cstring>
#include <type_traits>

namespace attnscope {
namespace {

// A sum of x * 0 is 0 exactly when every x is finite, and NaN otherwise: one vectorisable pass without
// a branch per entry. Half types are widened first.
template <class Scalar>
double zero_if_finite(const Scalar* row, Index n, Index stride) {
  using Wide = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;
  Wide lanes[16] = {};
  Index j = 0;
  if (stride == 1) {
    for (; j + 16 <= n; j += 16) {
      for (Index k = 0; k < 16; ++k) lanes[k] += static_cast<Wide>(row[j + k]) * Wide(0);
    }
  }
  for (; j < n; ++j) lanes[0] += static_cast<Wide>(row[j * stride]) * Wide(0);
  Wide sum = 0;
  for (Wide lane : lanes) sum += lane;
  return static_cast<double>(sum);
}

// Without a branch per entry, so that it vectorises; half types are compared by their bits.
template <class Scalar>
bool any_nonzero(const Scalar* run, Index n, Index stride) {
  if constexpr (sizeof(Scalar) == 2) {
    std::uint16_t magnitudes = 0;
    for (Index j = 0; j < n; ++j) {
      std::uint16_t bits;
      std::memcpy(&bits, run + j * stride, sizeof(bits));
      magnitudes = static_cast<std::uint16_t>(magnitudes | (bits & 0x7fff));
    }
    return magnitudes != 0;
  } else {
    int found = 0;
    if (stride == 1) {
      for (Index j = 0; j < n; ++j) found |= run[j] != Scalar(0) ? 1 : 0;
    } else {
      for (Index j = 0; j < n; ++j) found |= run[j * stride] != Scalar(0) ? 1 : 0;
    }
    return found != 0;
  }
}

}  // namespace

template <class Scalar>
bool all_finite(const MatrixView<Scalar>& matrix) {
  const Index n = matrix.rows();
  const Index row_stride = matrix.outerStride();
  const Index column_stride = matrix.innerStride();
  // A transposed view is walked along its contiguous direction: the answer does not depend on order.
  const bool by_rows = column_stride <= row_stride;
  const Index outer = by_rows ? row_stride : column_stride;
  const Index inner = by_rows ? column_stride : row_stride;
  for (Index i = 0; i < n; ++i) {
    if (zero_if_finite(matrix.data() + i * outer, n, inner) != 0.0) return false;
  }
  return true;
}

template <class Scalar>
bool is_causal(const MatrixView<Scalar>& matrix) {
  const Index n = matrix.rows();
  if (n < 2) return false;
  const Index row_stride = matrix.outerStride();
  const Index column_stride = matrix.innerStride();
  // Above the diagonal lie the ends of the rows and the heads of the columns: whichever is contiguous.
  const bool by_rows = column_stride <= row_stride;
  for (Index k = 0; k < n; ++k) {
    const Scalar* run = by_rows ? matrix.data() + k * row_stride + (k + 1) * column_stride
                                : matrix.data() + k * column_stride;
    if (any_nonzero(run, by_rows ? n - k - 1 : k, by_rows ? column_stride : row_stride)) return false;
  }
  return true;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                        \
  template bool all_finite<Scalar>(const MatrixView<Scalar>&); \
  template bool is_causal<Scalar>(const MatrixView<Scalar>&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
