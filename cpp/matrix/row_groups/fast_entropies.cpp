// SPDX-License-Identifier: MIT
#include "matrix/row_groups/fast_entropies.h"

#include <algorithm>
#include <type_traits>

#include "matrix/row_groups/float_row_groups.h"
#include "matrix/row_statistics.h"

namespace attnscope {
namespace {

// Of fewer registers the chains of several rows are too many.
constexpr Index kRowsTogether = kPackWidth == 8 ? 4 : 1;

}  // namespace

template <class Scalar>
void fast_entropies(const MatrixView<Scalar>& attention, const Support& support, bool zeros_behind,
                    double* out, RowScratch& scratch) {
  if constexpr (std::is_same_v<Scalar, double> || kRowsTogether == 1) {
    row_entropies(attention, support, zeros_behind, true, out, scratch);
  } else {
    const Index n = attention.cols();
    const Index queries = attention.rows();
    if (attention.innerStride() != 1 || n < kFloatWidth || support.kind == Support::Kind::mask) {
      row_entropies(attention, support, zeros_behind, true, out, scratch);
      return;
    }
    const auto row_by_row = [&](Index from, Index end) {
      if (from == end) return;
      Support shifted = support;
      shifted.shift += from;
      const Scalar* first = attention.data() + from * attention.outerStride();
      row_entropies(
          matrix_view(first, end - from, n, attention.outerStride(), attention.innerStride()),
          shifted, zeros_behind, true, out + from, scratch);
    };
    // a whole vector with zeros at its end costs less than one that is masked
    const auto end_of = [&](Index i) {
      const Index end = support.end(i, n);
      return zeros_behind ? std::min((end + kFloatWidth - 1) / kFloatWidth * kFloatWidth, n) : end;
    };
    Index i = 0;
    while (i < queries) {
      const Index last = std::min(i + kRowsTogether, queries);
      bool fits_float32 =
          last == i + kRowsTogether && end_of(i) == end_of(last - 1) &&
          float_row_entropies<kRowsTogether>(attention.data() + i * attention.outerStride(),
                                             attention.outerStride(), end_of(i), n, out + i);
      for (Index r = i; fits_float32 && r < last; ++r)
        fits_float32 = out[r] == 0.0 || out[r] > kSmallestFast;
      if (!fits_float32) row_by_row(i, last);
      i = last;
    }
  }
}

ATTNSCOPE_COMPILE(fast_entropies);

}  // namespace attnscope
