// SPDX-License-Identifier: MIT
#include "kernels/entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/logarithm.h"
#include "kernels/base/rows.h"

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// −Σ x log x; NaN where an entry is negative.
template <class WideType>
double row_entropy(const WideType* row, Index end, Index n) {
  Lanes even{};
  Lanes odd{};
  LaneMask signs{};  // the sign bit of every lane that met one
  Index j = 0;
  for (; j + 2 * kPackWidth <= end; j += 2 * kPackWidth) {
    const Lanes a = load(row + j);
    const Lanes b = load(row + j + kPackWidth);
    signs |= reinterpret_cast<LaneMask>(a) | reinterpret_cast<LaneMask>(b);
    even += a * bounded_log(a);
    odd += b * bounded_log(b);
  }
  for (; j < end; j += kPackWidth) {
    const Lanes a = j + kPackWidth <= end ? load(row + j) : load_head(row + j, end - j, n - j);
    signs |= reinterpret_cast<LaneMask>(a);
    even += a * bounded_log(a);
  }
  // −0 has a sign too, and is no negative entry.
  if (any(signs < 0) && std::any_of(row, row + end, [](WideType x) { return x < 0; })) return kNaN;
  return 0.0 - sum(even + odd);
}

}  // namespace

template <class Scalar>
void attention_entropy(const MatrixView<Scalar>& attention, const Support& support, bool normalized,
                       double* out, RowScratch& scratch) {
  const Index n = attention.rows();
  for_each_row(attention, support, scratch, [&](Index i, const Wide<Scalar>* row, Index end) {
    out[i] = row_entropy(row, end, n);
    if (!normalized) return;
    const Index keys = visible_keys(support, i, n);
    out[i] = keys < 2 ? kNaN : out[i] / std::log(static_cast<double>(keys));
  });
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                      \
  template void attention_entropy<Scalar>(const MatrixView<Scalar>&, const Support&, bool, \
                                          double*, RowScratch&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
