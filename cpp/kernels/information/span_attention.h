// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// Attention of the keys S = [start, stop) and of the m queries that stand at one of them, of which
// a rectangle may have none (NaN); query i sees v_i keys. All in [0, 1] but the boost.
//  share             (1/m) Σ_{i∈S} Σ_{j∈S} A_ij, what the span's rows keep inside
//  uniform           the same under uniform attention, (1/m) Σ_{i∈S} |S ∩ seen by i|/v_i
//  boost             share/uniform
//  diagonal          (1/m) Σ_{i∈S} A_ii
//  special           (1/m) Σ_{i∈S} of A_ij over the marked keys outside S
//  context           the same over all other keys outside S
//  received          mean of Σ_{j∈S} A_ij over the queries outside S that see one of S, or NaN
//  received_uniform  the same under uniform attention
// Invisible entries count as 0, and a query that sees no key has no attention.
struct SpanAttention {
  double share;
  double uniform;
  double boost;
  double diagonal;
  double special;
  double context;
  double received;
  double received_uniform;
};

// The eight numbers, 0 <= start < stop <= keys; `special` marks keys, `special_stride` apart, or is
// null. With `find_support` the read that looks for entries that are not finite also finds out the
// support, otherwise `support` is taken as it is. Returns whether all entries are finite; where
// not, `out` is not written. One read of the matrix, O(mn) additions; under a mask O(n²).
template <class Scalar>
bool span_attention(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                    Index start, Index stop, const bool* special, Index special_stride,
                    SpanAttention& out);

}  // namespace attnscope
