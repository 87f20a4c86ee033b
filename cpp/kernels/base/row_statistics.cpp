// SPDX-License-Identifier: MIT
#include "kernels/base/row_statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/base/logarithm.h"
#include "kernels/base/rows.h"

namespace attnscope {
namespace {

// mass += row and, returned, −Σ x log x; NaN where an entry is negative.
template <class WideType>
double add_with_entropy(const WideType* row, Index end, Index n, double* mass) {
  Lanes even{};
  Lanes odd{};
  LaneMask signs{};  // the sign bit of every lane that met one
  Index j = 0;
  for (; j + 2 * kPackWidth <= end; j += 2 * kPackWidth) {
    const Lanes a = load(row + j);
    const Lanes b = load(row + j + kPackWidth);
    store(mass + j, load(mass + j) + a);
    store(mass + j + kPackWidth, load(mass + j + kPackWidth) + b);
    signs |= reinterpret_cast<LaneMask>(a) | reinterpret_cast<LaneMask>(b);
    even += a * bounded_log(a);
    odd += b * bounded_log(b);
  }
  for (; j < end; j += kPackWidth) {
    const Index count = std::min(kPackWidth, end - j);
    const Lanes a = count == kPackWidth ? load(row + j) : load_head(row + j, count, n - j);
    for (Index k = 0; k < count; ++k) mass[j + k] += a[k];
    signs |= reinterpret_cast<LaneMask>(a);
    even += a * bounded_log(a);
  }
  // −0 has a sign too, and is no negative entry.
  if (any(signs < 0) && std::any_of(row, row + end, [](WideType x) { return x < 0; })) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  return 0.0 - sum(even + odd);
}

// mass += row.
template <class WideType>
void add(const WideType* row, Index end, double* mass) {
  Index j = 0;
  for (; j + kPackWidth <= end; j += kPackWidth) store(mass + j, load(mass + j) + load(row + j));
  for (; j < end; ++j) mass[j] += static_cast<double>(row[j]);
}

// mass += four rows as they lie, each added in turn so that the sum is that of `add`.
template <class WideType>
void add_four(const WideType* const* rows, Index end, double* mass) {
  Index j = 0;
  for (; j + kPackWidth <= end; j += kPackWidth) {
    Lanes total = load(mass + j);
    for (Index r = 0; r < 4; ++r) total += load(rows[r] + j);
    store(mass + j, total);
  }
  for (; j < end; ++j) {
    for (Index r = 0; r < 4; ++r) mass[j] += static_cast<double>(rows[r][j]);
  }
}

// The pass under one support; false where `judge` and an entry behind the support is not 0.
template <class Scalar>
bool pass(const MatrixView<Scalar>& attention, bool judge, const Support& support, double* mass,
          double* entropy, RowScratch& scratch) {
  const Index n = attention.rows();
  std::fill(mass, mass + n, 0.0);
  Support read = support;
  if (judge) read.kind = Support::Kind::full;  // the reader blanks what its support hides
  RowReader<Scalar> reader(attention, read, scratch);
  const bool causal = support.kind == Support::Kind::causal;
  const auto hidden = [&](Index i, const Wide<Scalar>* row) {
    return judge && causal && any_nonzero(row + i + 1, n - i - 1, 1);
  };
  Index i = 0;
  if (entropy == nullptr && reader.in_place()) {
    for (; i + 4 <= n; i += 4) {
      const Wide<Scalar>* rows[4];
      for (Index r = 0; r < 4; ++r) {
        rows[r] = reader.row(i + r);
        if (hidden(i + r, rows[r])) return false;
      }
      // The rows' common part, then what the later ones see besides.
      const Index common = support.end(i, n);
      add_four(rows, common, mass);
      for (Index r = 1; r < 4; ++r) {
        for (Index j = common; j < support.end(i + r, n); ++j) {
          mass[j] += static_cast<double>(rows[r][j]);
        }
      }
    }
  }
  for (; i < n; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    if (hidden(i, row)) return false;
    if (entropy == nullptr) {
      add(row, support.end(i, n), mass);
    } else {
      entropy[i] = add_with_entropy(row, support.end(i, n), n, mass);
    }
  }
  return true;
}

}  // namespace

template <class Scalar>
bool row_statistics(const MatrixView<Scalar>& attention, bool judge, Support& support, double* mass,
                    double* entropy, RowScratch& scratch) {
  const Index n = attention.rows();
  if (!judge) {
    if (!all_finite(attention)) return false;
    pass(attention, false, support, mass, entropy, scratch);
    return true;
  }
  support = Support{};
  support.kind = n >= 2 ? Support::Kind::causal : Support::Kind::full;
  if (!pass(attention, true, support, mass, entropy, scratch)) {
    support.kind = Support::Kind::full;
    pass(attention, true, support, mass, entropy, scratch);
  }
  // Every entry is 0 or in a sum.
  Lanes spoiled{};
  Index j = 0;
  for (; j + kPackWidth <= n; j += kPackWidth) spoiled += load(mass + j) * 0.0;
  double rest = sum(spoiled);
  for (; j < n; ++j) rest += mass[j] * 0.0;
  // A sum of finite float64 numbers can overflow, one of the shorter types cannot.
  return rest == 0.0 || (std::is_same_v<Scalar, double> && all_finite(attention));
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                           \
  template bool row_statistics<Scalar>(const MatrixView<Scalar>&, bool, Support&, double*, double*, \
                                       RowScratch&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
