// SPDX-License-Identifier: MIT
#include "kernels/base/states.h"

#include <cmath>

namespace attnscope {

template <class Scalar>
bool widen_states(const Scalar* states, Index row_stride, Index column_stride, Index width,
                  Index begin, Index end, bool unit, double* out) {
  using Row = Eigen::Array<double, Eigen::Dynamic, 1>;
  double spoiled = 0.0;
  for (Index i = begin; i < end; ++i) {
    const Scalar* from = states + i * row_stride;
    Eigen::Map<Row> row(out + i * width, width);
    for (Index k = 0; k < width; ++k) row[k] = static_cast<double>(from[k * column_stride]);
    spoiled += (row * 0.0).sum();
    if (!unit) continue;
    // Scaled by the largest entry first, so that no square over- or underflows.
    const double largest = row.abs().maxCoeff();
    if (!(largest > 0.0)) continue;
    row /= largest;
    row /= std::sqrt(row.square().sum());
  }
  return spoiled == 0.0;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                        \
  template bool widen_states<Scalar>(const Scalar*, Index, Index, Index, Index, Index, bool, \
                                     double*);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
