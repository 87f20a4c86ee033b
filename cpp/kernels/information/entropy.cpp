// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include <algorithm>
#include <cmath>

#include "matrix/row_statistics.h"
#include "matrix/rows.h"

namespace attnscope {

template <class Scalar>
bool attention_entropy(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                       bool normalized, double* out, RowScratch& scratch) {
  const Index queries = attention.rows();
  const Index n = attention.cols();
  if (!row_statistics(attention, find_support, support, out, scratch)) {
    std::fill(out, out + queries, kNaN);
    return false;
  }
  if (!normalized) return true;
  for (Index i = 0; i < queries; ++i) {
    const Index keys = visible_keys(support, i, n);
    out[i] = keys < 2 ? kNaN : out[i] / std::log(static_cast<double>(keys));
  }
  return true;
}

ATTNSCOPE_COMPILE(attention_entropy);

}  // namespace attnscope
