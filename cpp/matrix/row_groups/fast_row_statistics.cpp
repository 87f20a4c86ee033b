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

// What became of a read in groups of rows.
enum class Reading { finished, behind_support, signed_entry };

// Reads kRows rows from row i on, whose keys end at `end` or before, with zeros in between. False
// where an entry has a sign and sums are asked for: those of float32 are not to cancel.
template <Index kRows, RowsAnswer kAnswer, class Scalar>
bool read_group(const MatrixView<Scalar>& attention, const Support& support, Index i, Index end,
                double* entropy, float* sums, RowScratch& scratch) {
  const Index n = attention.cols();
  const Index stride = attention.outerStride();
  const Scalar* rows = attention.data() + i * stride;
  double* of_rows = kAnswer == RowsAnswer::sums ? nullptr : entropy + i;
  bool fits_float32 = read_float_rows<kRows, kAnswer>(rows, stride, end, n, of_rows, sums);
  if constexpr (kAnswer != RowsAnswer::entropies) {
    if (!fits_float32) return false;
  }
  if constexpr (kAnswer != RowsAnswer::sums) {
    for (Index r = i; fits_float32 && r < i + kRows; ++r)
      fits_float32 = entropy[r] == 0.0 || entropy[r] > kSmallestFast;
    if (!fits_float32) {
      Support shifted = support;
      shifted.shift += i;
      row_entropies(matrix_view(rows, kRows, n, stride, Index{1}), shifted, true, true, of_rows,
                    scratch);
    }
  }
  return true;
}

// sums += the first `end` of the sums of a block of rows, which become 0.
void add_block(float* block, Index end, double* sums) {
  Index j = 0;
  for (; j + kFloatWidth <= end; j += kFloatWidth) {
    const FloatVector x = vector_at<FloatVector>(block + j);
    store(sums + j, load(sums + j) + low_lanes(x));
    store(sums + j + kPackWidth, load(sums + j + kPackWidth) + high_lanes(x));
    put(block + j, FloatVector{});
  }
  for (; j < end; ++j) {
    sums[j] += static_cast<double>(block[j]);
    block[j] = 0.0f;
  }
}

// Up to kFloatWidth rows at a time, whose columns are added in float32 before their sum goes to
// `sums`.
template <RowsAnswer kAnswer, class Scalar>
Reading read_in_groups(const MatrixView<Scalar>& attention, const Support& support, double* entropy,
                       double* sums, RowScratch& scratch) {
  if constexpr (std::is_same_v<Scalar, double>) {
    return Reading::signed_entry;
  } else {
    constexpr bool kSums = kAnswer != RowsAnswer::entropies;
    const Index queries = attention.rows();
    const Index n = attention.cols();
    const Index stride = attention.outerStride();
    const bool causal = support.kind == Support::Kind::causal;
    float* block = nullptr;
    if constexpr (kSums) {
      std::fill(sums, sums + n, 0.0);
      scratch.block_sums.assign(n, 0.0f);
      block = scratch.block_sums.data();
    }
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
          return Reading::behind_support;
      }
      bool are_magnitudes = true;
      for (; are_magnitudes && i + kRowsTogether <= stop; i += kRowsTogether)
        are_magnitudes =
            read_group<kRowsTogether, kAnswer>(attention, support, i, end, entropy, block, scratch);
      for (; are_magnitudes && i < stop; ++i)
        are_magnitudes =
            read_group<1, kAnswer>(attention, support, i, end, entropy, block, scratch);
      if (!are_magnitudes) return Reading::signed_entry;
      if constexpr (kSums) add_block(block, end, sums);
    }
    return Reading::finished;
  }
}

// The read under the support that is asked for or found out, where rows can be read in groups and
// all that a causal support hides is 0; false where not, and nothing is known then.
template <RowsAnswer kAnswer, class Scalar>
bool read_once(const MatrixView<Scalar>& attention, bool find_support, Support& support,
               double* entropy, double* sums, RowScratch& scratch) {
  const auto read = [&] {
    return read_in_groups<kAnswer>(attention, support, entropy, sums, scratch);
  };
  if (!find_support) return read() == Reading::finished;
  support.kind = attention.cols() >= 2 ? Support::Kind::causal : Support::Kind::full;
  Reading reading = read();
  if (reading == Reading::behind_support) {
    support.kind = Support::Kind::full;
    reading = read();
  }
  return reading == Reading::finished;
}

}  // namespace

template <class Scalar>
bool fast_row_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                         double* entropy, RowScratch& scratch) {
  if (is_readable_in_groups(attention, support)) {
    const Index n = attention.cols();
    scratch.sums.resize(n);
    double* sums = scratch.sums.data();
    const bool is_read =
        entropy == nullptr
            ? read_once<RowsAnswer::sums>(attention, find_support, support, entropy, sums, scratch)
            : read_once<RowsAnswer::both>(attention, find_support, support, entropy, sums, scratch);
    // a sum of finite float32 numbers can overflow
    if (is_read && are_finite(sums, n, 1)) return true;
  }
  if (!is_worth_float32(attention))
    return row_statistics(attention, find_support, support, entropy, scratch);
  if (!row_statistics(attention, find_support, support, nullptr, scratch)) return false;
  if (entropy != nullptr) row_entropies(attention, support, find_support, true, entropy, scratch);
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
      read_once<RowsAnswer::entropies>(attention, find_support, support, entropy, nullptr,
                                       scratch)) {
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
