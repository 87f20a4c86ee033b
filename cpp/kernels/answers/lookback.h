// SPDX-License-Identifier: MIT
#pragma once

#include "matrix/matrix_view.h"

namespace attnscope {

// An answer, the tokens [start, stop), the first key that is no context, and the rows that count:
// those that predict the answer's tokens, start - 1 … stop - 2, or the tokens' own.
struct LookbackAnswer {
  Index start;
  Index stop;
  Index context;
  bool predicting;
};

// Row q of the answer: m_c/(m_c + m_o), the mean of A_qj over the visible keys j < context and the
// mean over the other visible keys; NaN where either has no key, or both means are 0.
//
// The rows [first_row, n) exist, and `ratio` holds n - first_row entries, NaN outside the answer.
// `value` is the mean over the defined rows, NaN without one; a learned sink changes neither. With
// `find_support` the support is judged as auto_support does, for first_row = 0; otherwise `support`
// is taken as it is. Returns whether all entries are finite; where not, the ratios are NaN and
// `value` is not written. One read. Chuang et al., Lookback Lens, 2024.
template <class Scalar>
bool lookback(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
              Support& support, const LookbackAnswer& answer, double* ratio, double& value,
              RowScratch& scratch);

}  // namespace attnscope
