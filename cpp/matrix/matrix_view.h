// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>

#include "simd/index.h"

namespace attnscope {

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

}  // namespace attnscope

// Expands MACRO once per element type a kernel reads.
#define ATTNSCOPE_FOR_EACH_SCALAR(MACRO) \
  MACRO(float)                           \
  MACRO(double)                          \
  MACRO(Eigen::half)                     \
  MACRO(Eigen::bfloat16)
