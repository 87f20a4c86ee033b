// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "matrix/row_statistics.h"
#include "matrix/rows.h"

namespace attnscope {

template <class Scalar>
bool attention_entropy(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                       bool normalized, double* out, EntropyWorkspace& workspace) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  const Index n = attention.rows();
  workspace.mass.resize(static_cast<std::size_t>(n));
  if (!row_statistics(attention, find_support, support, workspace.mass.data(), out, workspace.rows)) {
    std::fill(out, out + n, kNaN);
    return false;
  }
  if (!normalized) return true;
  for (Index i = 0; i < n; ++i) {
    const Index keys = visible_keys(support, i, n);
    out[i] = keys < 2 ? kNaN : out[i] / std::log(static_cast<double>(keys));
  }
  return true;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                        \
  template bool attention_entropy<Scalar>(const MatrixView<Scalar>&, bool, Support&, bool,   \
                                          double*, EntropyWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
