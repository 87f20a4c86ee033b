// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

// Maps of which the last rows are in memory: decoding with a cache computes no others.
namespace attnscope {

// Reads the rows [first_row, n) of a map of n keys, which alone exist. With `find_support` the
// support becomes that of auto_support, for which all rows must exist; otherwise it is taken as it
// is. Returns whether all entries are finite.
template <class Scalar>
bool read_partial_map(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
                      Support& support, RowScratch& scratch);

}  // namespace attnscope
