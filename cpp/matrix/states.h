// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Rows [begin, end) of token states of `width` numbers each, widened to float64, to out[i·width +
// k]; `unit` scales every row to norm 1, a row of zeros staying 0. Returns whether all entries are
// finite.
template <class Scalar>
bool widen_states(const Scalar* states, Index row_stride, Index column_stride, Index width,
                  Index begin, Index end, bool unit, double* out);

}  // namespace attnscope
