// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"
#include "simd/memory.h"

namespace attnscope {

// Householder reduction of square matrices to upper bidiagonal form, UᵀAV = B (Golub and Kahan
// 1965), in two passes over the trailing matrix a column: one updates it and multiplies it from the
// left, one multiplies it from the right. Cost 8n³/3.

// Numbers from one row of a pack, or of one matrix, to the next.
Index bidiagonal_pack_row(Index n);
Index bidiagonal_row(Index n);

// A pack of as many matrices as a vector has lanes: their entries (i, j) stand side by side at
// pack + i·bidiagonal_pack_row(n) + j·width, on a 64-byte boundary. Overwrites the pack; entry i of
// the diagonals and superdiagonals goes to diagonal + i·stride (width numbers).
void bidiagonalize_pack(double* pack, Index n, double* diagonal, double* superdiagonal,
                        Index stride, AlignedBuffer& scratch);

// The same of a pack of twice as many float32 matrices: entry i of all goes to diagonal + i times
// as many.
void bidiagonalize_float_pack(float* pack, Index n, float* diagonal, float* superdiagonal,
                              AlignedBuffer& scratch);

// One matrix with rows bidiagonal_row(n) apart on 64-byte boundaries, zero beyond column n.
// Overwrites it; entry i goes to diagonal[i·stride].
void bidiagonalize(double* matrix, Index n, double* diagonal, double* superdiagonal, Index stride,
                   AlignedBuffer& scratch);

// One matrix in float32, in panels of columns, whose rows are set before it is reduced.
class FloatPanels {
 public:
  FloatPanels(Index n, AlignedBuffer& buffer);

  // Row i of the matrix is scale·row, of n numbers.
  void set_row(Index i, const double* row, double scale);
  // As `bidiagonalize`; destroys the matrix.
  void bidiagonalize(double* diagonal, double* superdiagonal, Index stride, AlignedBuffer& scratch);

 private:
  Index n_, vectors_;
  float* entries_;
};

}  // namespace attnscope
