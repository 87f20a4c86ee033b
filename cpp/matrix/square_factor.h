// SPDX-License-Identifier: MIT
#pragma once

#include "simd/memory.h"

namespace attnscope {

// The square matrix with the singular values of a rectangle, less those that are 0 anyway: the
// lower triangle L of A = L·Q where A [rows, columns] has no more rows than columns, else that of
// Aᵀ, to `out` [r, r], r = min(rows, columns), zeros above the diagonal. `matrix` lies row after
// row and its fourth powers are in float64's range. Householder reflections: singular values move
// by at most a few roundings of the largest. Cost 2·r²·max(rows, columns).
void square_factor(const double* matrix, Index rows, Index columns, double* out);

}  // namespace attnscope
