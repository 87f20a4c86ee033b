// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "simd/memory.h"

namespace attnscope {

// What has no value.
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// A read-only strided view of one matrix in the caller's memory, rows = queries, columns = keys.
// Either stride may be zero (an expanded tensor), and neither needs to be contiguous, so slices and
// transposes are read in place.
template <class Scalar>
using MatrixView =
    Eigen::Map<const Eigen::Matrix<Scalar, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>,
               Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

// Strides count elements, rows first.
template <class Scalar>
MatrixView<Scalar> matrix_view(const Scalar* data, Index rows, Index columns, Index row_stride,
                               Index column_stride) {
  return MatrixView<Scalar>(
      data, rows, columns,
      Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(row_stride, column_stride));
}

// The same of a square matrix.
template <class Scalar>
MatrixView<Scalar> matrix_view(const Scalar* data, Index n, Index row_stride, Index column_stride) {
  return matrix_view(data, n, n, row_stride, column_stride);
}

// True when no entry is NaN or infinite.
template <class Scalar>
bool all_finite(const MatrixView<Scalar>& matrix);

// True when no entry is NaN: what distances are asked, of which an infinite one is a pair that
// nothing joins.
template <class Scalar>
bool none_is_nan(const MatrixView<Scalar>& matrix);

// True when one of `n` entries, `stride` apart, is not 0; NaN is not.
template <class Scalar>
bool any_nonzero(const Scalar* run, Index n, Index stride);

// True when every entry behind its query's own key is exactly 0 and there are two keys or more;
// query i stands at key i + shift, in a square matrix at key i.
template <class Scalar>
bool is_causal(const MatrixView<Scalar>& matrix, Index shift = 0);

// Whether the lines of a matrix, the direction in which it lies in memory, are its rows.
template <class Scalar>
bool lines_are_rows(const MatrixView<Scalar>& matrix) {
  return matrix.innerStride() <= matrix.outerStride();
}

// The matrix or its transpose, whichever has its rows along memory: for what does not depend on the
// order.
template <class Scalar>
MatrixView<Scalar> along_memory(const MatrixView<Scalar>& matrix) {
  if (lines_are_rows(matrix)) return matrix;
  return matrix_view(matrix.data(), matrix.cols(), matrix.rows(), matrix.innerStride(),
                     matrix.outerStride());
}

// What `all_finite` and `is_causal` say; a matrix that is not finite is not causal either.
struct MatrixReading {
  bool finite;
  bool causal;
};

// Both in one read, of some lines at a time for who uses each while it lies in the cache. `reading`
// holds what the lines before say, at first { true, keys >= 2 }; { true, false } asks for entries
// that are not finite alone.
template <class Scalar>
void read_lines(const MatrixView<Scalar>& matrix, Index begin, Index end, MatrixReading& reading,
                Index shift = 0);

// The shift of queries that stand at no key of the map: those of cross attention.
inline constexpr Index kNoKeyShift = -(Index{1} << 40);

// Which keys each query can see, and where the query itself stands: at key i + shift, or at
// positions[i] where that is not null. `causal`: key j is visible to query i when j <= i + shift;
// `full`: all keys; `mask`: where the boolean view is true (the same size as the matrix, any
// strides). Where `positions` is set, the kind is not causal.
struct Support {
  enum class Kind { full, causal, mask };
  Kind kind = Kind::full;
  const bool* mask = nullptr;
  Index mask_row_stride = 0;
  Index mask_column_stride = 0;
  Index shift = 0;
  const std::int64_t* positions = nullptr;

  // The key at which a query stands; below 0 for one of cross attention.
  Index position(Index query) const {
    return positions == nullptr ? query + shift : static_cast<Index>(positions[query]);
  }

  bool visible(Index query, Index key) const {
    if (kind == Kind::mask) return mask[query * mask_row_stride + key * mask_column_stride];
    return kind == Kind::full || key <= query + shift;
  }

  // One past the last of n keys that `query` can see, for loops that skip the masked triangle.
  Index end(Index query, Index n) const {
    return kind == Kind::causal ? std::clamp<Index>(query + shift + 1, 0, n) : n;
  }
};

// Judges a matrix by itself: causal when everything behind its queries' own keys is exactly 0 (two
// keys or more), else full; `places` says where the queries stand.
template <class Scalar>
Support auto_support(const MatrixView<Scalar>& matrix, Support places = {}) {
  places.kind = is_causal(matrix, places.shift) ? Support::Kind::causal : Support::Kind::full;
  return places;
}

// The type a kernel computes with after reading a Scalar: exact for all four element types.
template <class Scalar>
using Wide = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

// Scratch of what reads a matrix row by row: at most 16 rows of it, never the matrix.
struct RowScratch {
  std::tuple<std::vector<float>, std::vector<double>> rows;
  std::vector<double> sums;       // of columns
  std::vector<float> block_sums;  // of columns over a few rows, for `fast`

  template <class T>
  std::vector<T>& of() {
    return std::get<std::vector<T>>(rows);
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
#define ATTNSCOPE_COMPILE(function)                               \
  template decltype(function<float>) function<float>;             \
  template decltype(function<double>) function<double>;           \
  template decltype(function<Eigen::half>) function<Eigen::half>; \
  template decltype(function<Eigen::bfloat16>) function<Eigen::bfloat16>
