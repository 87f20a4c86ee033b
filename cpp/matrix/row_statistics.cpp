// SPDX-License-Identifier: MIT
#include "matrix/row_statistics.h"

#include "matrix/columns/column_sums.h"
#include "matrix/float_rows.h"
#include "matrix/row_logs.h"

namespace attnscope {
namespace {

// mass += rows, each added in turn, so that the sum is the same whatever rows are taken together;
// row r sees ends[r] keys, no fewer than the row before. Whole vectors of `mass` are touched.
template <Index kRows, class WideType>
void add(const WideType* const* rows, const Index* ends, Index n, double* mass) {
  Index j = 0;
  for (; j + kPackWidth <= ends[0]; j += kPackWidth) {
    Lanes total = load(mass + j);
    for (Index r = 0; r < kRows; ++r) total += load(rows[r] + j);
    store(mass + j, total);
  }
  for (; j < ends[kRows - 1]; j += kPackWidth) {
    Lanes total = load(mass + j);
    for (Index r = 0; r < kRows; ++r) {
      const Index left = ends[r] - j;
      if (left <= 0) continue;
      total += left >= kPackWidth ? load(rows[r] + j) : load_head(rows[r] + j, left, n - j);
    }
    store(mass + j, total);
  }
}

// The pass under one support; false where `find_support` and an entry behind the support is not 0.
template <class Scalar>
bool pass(const MatrixView<Scalar>& attention, bool find_support, const Support& support,
          double* entropy, RowScratch& scratch) {
  const Index queries = attention.rows();
  const Index n = attention.cols();
  auto& sums = scratch.sums;
  sums.assign(n + 2 * kPackWidth, 0.0);
  Support read = support;
  if (find_support) read.kind = Support::Kind::full;  // the reader blanks what its support hides
  RowReader<Scalar> reader(attention, read, scratch);
  const bool causal = support.kind == Support::Kind::causal;
  const auto hidden = [&](Index i, const Wide<Scalar>* row) {
    const Index end = support.end(i, n);
    return find_support && causal && any_nonzero(row + end, n - end, 1);
  };
  Index i = 0;
  if (entropy == nullptr && reader.in_place()) {
    for (; i + 4 <= queries; i += 4) {
      const Wide<Scalar>* rows[4];
      Index ends[4];
      for (Index r = 0; r < 4; ++r) {
        rows[r] = reader.row(i + r);
        ends[r] = support.end(i + r, n);
        if (hidden(i + r, rows[r])) return false;
      }
      add<4>(rows, ends, n, sums.data());
    }
  }
  for (; i < queries; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    if (hidden(i, row)) return false;
    const Index end = support.end(i, n);
    if (entropy == nullptr) {
      add<1>(&row, &end, n, sums.data());
    } else {
      entropy[i] = row_entropy(row, end, n, sums.data());
    }
  }
  sums.resize(n);
  return true;
}

// The entropy of a row in float32, or in float64 where float32 does not hold it.
template <class Entry>
double fast_entropy(const Entry* row, Index end, Index n) {
  const double entropy = float_row_entropy(row, end, n);
  if (entropy == 0.0 || std::abs(entropy) > kSmallestFast || std::isnan(entropy)) return entropy;
  double sum = 0.0;
  for (Index j = 0; j < end; ++j) {
    const auto x = static_cast<double>(row[j]);
    if (x > 0.0) sum -= x * std::log(x);
  }
  return sum;
}

}  // namespace

template <class Scalar>
bool row_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                    double* entropy, RowScratch& scratch) {
  const Index n = attention.cols();
  if (!find_support) {
    if (!all_finite(attention)) return false;
    pass(attention, false, support, entropy, scratch);
    return true;
  }
  support.kind = n >= 2 ? Support::Kind::causal : Support::Kind::full;
  const bool is_small = stays_in_cache(attention);
  if (is_small && entropy == nullptr && has_summable_columns(attention)) {
    scratch.sums.resize(n);
    if (!sum_columns(attention, Index{1}, support.shift, n >= 2, scratch.sums.data()))
      support.kind = Support::Kind::full;
  } else if (is_small) {
    support.kind =
        is_causal(attention, support.shift) ? Support::Kind::causal : Support::Kind::full;
    pass(attention, false, support, entropy, scratch);
  } else if (!pass(attention, true, support, entropy, scratch)) {
    support.kind = Support::Kind::full;
    pass(attention, true, support, entropy, scratch);
  }
  // Every entry is 0 or in a sum.
  const double* mass = scratch.sums.data();
  Lanes non_finite{};
  Index j = 0;
  for (; j + kPackWidth <= n; j += kPackWidth) non_finite += load(mass + j) * 0.0;
  double rest = sum_of_lanes(non_finite);
  for (; j < n; ++j) rest += mass[j] * 0.0;
  // A sum of finite float64 numbers can overflow, one of the shorter types cannot.
  return rest == 0.0 || (std::is_same_v<Scalar, double> && all_finite(attention));
}

template <class Scalar>
void row_entropies(const MatrixView<Scalar>& attention, const Support& support, bool zeros_behind,
                   bool fast, double* entropy, RowScratch& scratch) {
  const Index n = attention.cols();
  fast = fast && !std::is_same_v<Scalar, double>;
  const Index lanes = fast ? kFloatsInPack : kPackWidth;
  const auto write = [&](Index i, const auto* row, Index end) {
    // a whole vector with zeros at its end costs less than one that is masked
    if (zeros_behind) end = std::min((end + lanes - 1) / lanes * lanes, n);
    if constexpr (std::is_same_v<Scalar, double>) {
      entropy[i] = row_entropy(row, end, n, nullptr);
    } else {
      entropy[i] = fast ? fast_entropy(row, end, n) : row_entropy(row, end, n, nullptr);
    }
  };
  if (attention.innerStride() == 1 && support.kind != Support::Kind::mask) {
    for (Index i = 0; i < attention.rows(); ++i)
      write(i, attention.data() + i * attention.outerStride(), support.end(i, n));
  } else {
    for_each_row(attention, support, scratch, write);
  }
}

ATTNSCOPE_COMPILE(row_statistics);
ATTNSCOPE_COMPILE(row_entropies);

}  // namespace attnscope
