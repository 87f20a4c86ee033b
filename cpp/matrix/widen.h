// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>

#include "matrix/matrix_view.h"

namespace attnscope {

// Copies a matrix to float64 rows `ld` apart (ld >= its n columns) and returns the power of two it
// multiplied by: 1 unless the largest magnitude is so large or small that fourth powers of the
// entries would leave float64's range. Entries between n and ld are not touched.
template <class Scalar>
double widen(const MatrixView<Scalar>& matrix, double* out, Index ld);

// Copies the first `count` entries of row i of a matrix to float64 as they are.
template <class Scalar>
void widen_row(const MatrixView<Scalar>& matrix, Index i, Index count, double* out);

// The same of one to a pack's number of matrices, entry j of all of them side by side and 0 for one
// that is not there; `lines`: scratch of as many numbers as `out` gets.
template <class Scalar>
void interleave_row(std::span<const MatrixView<Scalar>> matrices, Index i, Index count,
                    double* lines, double* out);

// Copies `count` matrices that lie side by side in memory, entry (i, j) of matrix m being m entries
// behind that of `first`, to contiguous ones that begin `apart` entries after one another, no fewer
// than each has. Every line of memory is read once, where reading the matrices one by one fetches
// it for each of them.
template <class Scalar>
void separate(const MatrixView<Scalar>& first, Index count, Index apart, Scalar* out);

// The largest |x| of `count` numbers; 0 when there is none.
double largest_magnitude(const double* values, Index count);

// The numbers in float32; false where one is so large or small that a product of two of them might
// leave its range.
bool narrow(const double* numbers, Index count, float* out);

// The power of two that `widen` would multiply by, for a matrix of this largest magnitude.
double safe_scale(double largest);

// The power of two that brings a magnitude, above 0, near 1; infinity and NaN count as the largest
// number.
double unit_power(double magnitude);

// Rows of a map of n tokens that are worked on together beside their states: whole tiles of
// products on every instruction set, and enough of them that reading and packing all states for
// each block costs little.
inline Index state_rows(Index n) {
  return std::clamp<Index>((Index{1} << 18) / n / 48 * 48, 48, 144);
}

// Rows [begin, end) of token states of `width` numbers each, widened to float64, to out[i·width +
// k]; `unit` scales every row to norm 1, a row of zeros staying 0. Returns whether all entries are
// finite.
template <class Scalar>
bool widen_states(const Scalar* states, Index row_stride, Index column_stride, Index width,
                  Index begin, Index end, bool unit, double* out);

}  // namespace attnscope
