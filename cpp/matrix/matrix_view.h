// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <limits>
#include <type_traits>
#include <vector>

#include "simd/memory.h"

namespace attnscope {

// What has no value.
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A read-only strided view of one [n, n] matrix in the caller's memory. Either stride may be zero (an
// expanded tensor), and neither needs to be contiguous, so slices and transposes are read in place.
template <class Scalar>
using MatrixView =
    Eigen::Map<const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
               Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

// Strides count elements, rows first.
template <class Scalar>
MatrixView<Scalar> matrix_view(const Scalar* data, Index n, Index row_stride, Index column_stride) {
  return MatrixView<Scalar>(data, n, n,
                            Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(row_stride, column_stride));
}

// True when no entry is NaN or infinite.
template <class Scalar>
bool all_finite(const MatrixView<Scalar>& matrix);

// True when one of `n` entries, `stride` apart, is not 0; NaN is not.
template <class Scalar>
bool any_nonzero(const Scalar* run, Index n, Index stride);

// True when every entry above the diagonal is exactly 0 and n >= 2.
template <class Scalar>
bool is_causal(const MatrixView<Scalar>& matrix);

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

// Expands MACRO once per element type a kernel reads.
#define ATTNSCOPE_FOR_EACH_SCALAR(MACRO) \
  MACRO(float)                           \
  MACRO(double)                          \
  MACRO(Eigen::half)                     \
  MACRO(Eigen::bfloat16)

// Compiles a function template for each of them, as it is declared.
#define ATTNSCOPE_COMPILE(function)                          \
  template decltype(function<float>) function<float>;        \
  template decltype(function<double>) function<double>;      \
  template decltype(function<Eigen::half>) function<Eigen::half>; \
  template decltype(function<Eigen::bfloat16>) function<Eigen::bfloat16>
