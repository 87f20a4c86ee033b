// SPDX-License-Identifier: MIT
#include "matrix/row_groups/fast_row_statistics.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "matrix/columns/column_sums.h"
#include "matrix/row_groups/float_row_groups.h"
#include "matrix/row_statistics.h"

namespace attnscope {
namespace {

constexpr Index kRowsTogether = 4;

// Of rows shorter than a vector entropies in float32 take longer than the exact ones.
template <class Scalar>
bool is_worth_float32(const MatrixView<Scalar>& attention) {
  return attention.cols() >= kFloatWidth;
}

template <class Scalar>
bool is_readable_in_groups(const MatrixView<Scalar>& attention, const Support& support) {
  return !std::is_same_v<Scalar, double> && attention.innerStride() == 1 &&
         is_worth_float32(attention) && support.kind != Support::Kind::mask;
}

// Reads kRows rows from row i on, whose keys end at `end` or before, with zeros in between.
template <Index kRows, bool kSums, class Scalar>
void read_group(const MatrixView<Scalar>& attention, const Support& support, Index i, Index end,
                double* entropy, double* sums, RowScratch& scratch) {
  const Index n = attention.cols();
  const Index stride = attention.outerStride();
  const Scalar* rows = attention.data() + i * stride;
  bool fits_float32 = read_float_rows<kRows, kSums>(rows, stride, end, n, entropy + i, sums);
  for (Index r = i; fits_float32 && r < i + kRows; ++r)
    fits_float32 = entropy[r] == 0.0 || entropy[r] > kSmallestFast;
  if (!fits_float32) {
    Support shifted = support;
    shifted.shift += i;
    row_entropies(matrix_view(rows, kRows, n, stride, Index{1}), shifted, true, true, entropy + i,
                  scratch);
  }
}

// False where an entry behind the keys of a row is not 0.
template <bool kSums, class Scalar>
bool read_in_groups(const MatrixView<Scalar>& attention, const Support& support, double* entropy,
                    double* sums, RowScratch& scratch) {
  if constexpr (std::is_same_v<Scalar, double>) {
    return false;
  } else {
    const Index queries = attention.rows();
    const Index n = attention.cols();
    const Index stride = attention.outerStride();
    const bool causal = support.kind == Support::Kind::causal;
    if constexpr (kSums) std::fill(sums, sums + n, 0.0);
    for (Index i = 0; i < queries;) {
      // the last keys of rows that are looked at together lie in one vector
      const Index stop =
          std::min(i + kFloatWidth - ((i + support.shift) & (kFloatWidth - 1)), queries);
      Index end = n;
      if (causal) {
        // zeros add nothing, and a whole vector costs less than one that is masked
        const Index last = support.end(stop - 1, n);
        end = std::min((last + kFloatWidth - 1) / kFloatWidth * kFloatWidth, n);
        if (any_behind(attention.data() + i * stride, stride, stop - i, i + support.shift + 1, end,
                       n))
          return false;
      }
      for (; i + kRowsTogether <= stop; i += kRowsTogether)
        read_group<kRowsTogether, kSums>(attention, support, i, end, entropy, sums, scratch);
      for (; i < stop; ++i)
        read_group<1, kSums>(attention, support, i, end, entropy, sums, scratch);
    }
    return true;
  }
}

// The read under the support that is asked for or found out, where rows can be read in groups and
// all that a causal support hides is 0; false where not, and nothing is known then.
template <bool kSums, class Scalar>
bool read_once(const MatrixView<Scalar>& attention, bool find_support, Support& support,
               double* entropy, double* sums, RowScratch& scratch) {
  if (!find_support) return read_in_groups<kSums>(attention, support, entropy, sums, scratch);
  support.kind = attention.cols() >= 2 ? Support::Kind::causal : Support::Kind::full;
  if (read_in_groups<kSums>(attention, support, entropy, sums, scratch)) return true;
  support.kind = Support::Kind::full;
  return read_in_groups<kSums>(attention, support, entropy, sums, scratch);
}

}  // namespace

template <class Scalar>
bool fast_row_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                         double* entropy, RowScratch& scratch) {
  if (is_readable_in_groups(attention, support)) {
    const Index n = attention.cols();
    scratch.sums.resize(n);
    double* sums = scratch.sums.data();
    if (read_once<true>(attention, find_support, support, entropy, sums, scratch))
      return are_finite(sums, n, 1);
  }
  if (!is_worth_float32(attention))
    return row_statistics(attention, find_support, support, entropy, scratch);
  if (!row_statistics(attention, find_support, support, nullptr, scratch)) return false;
  row_entropies(attention, support, find_support, true, entropy, scratch);
  return true;
}

template <class Scalar>
bool fast_entropies(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                    double* entropy, RowScratch& scratch) {
  const auto is_finite = [](double x) { return std::isfinite(x); };
  const auto are_all_finite = [&] {
    return std::all_of(entropy, entropy + attention.rows(), is_finite) || all_finite(attention);
  };
  if (is_readable_in_groups(attention, support) &&
      read_once<false>(attention, find_support, support, entropy, nullptr, scratch)) {
    return are_all_finite();
  }
  const bool fast = is_worth_float32(attention);
  if (!find_support) {
    if (!all_finite(attention)) return false;
    row_entropies(attention, support, false, fast, entropy, scratch);
    return true;
  }
  support.kind = is_causal(attention, support.shift) ? Support::Kind::causal : Support::Kind::full;
  row_entropies(attention, support, true, fast, entropy, scratch);
  return are_all_finite();
}

ATTNSCOPE_COMPILE(fast_row_statistics);
ATTNSCOPE_COMPILE(fast_entropies);

}  // namespace attnscope
