// SPDX-License-Identifier: MIT
#include "matrix/row_statistics.h"

#include "matrix/float_rows.h"
#include "matrix/row_logs.h"

namespace attnscope {
namespace {

// The sums over rows [begin, rows) of kVectors vectors of columns, kept in registers, to `out`.
template <Index kVectors, class Scalar>
void sum_strip(const Scalar* columns, Index row_stride, Index begin, Index rows, double* out) {
  Lanes sums[kVectors] = {};
  for (Index i = begin; i < rows; ++i) {
    const Scalar* row = columns + i * row_stride;
#pragma GCC unroll 16
    for (Index v = 0; v < kVectors; ++v) sums[v] += load(row + v * kPackWidth);
  }
#pragma GCC unroll 16
  for (Index v = 0; v < kVectors; ++v) store(out + v * kPackWidth, sums[v]);
}

// The bits of the hidden entries of a strip of kVectors vectors of columns, of which row `first`
// sees column 0 and no other, or'ed together without their signs: 0 where all of them are 0.
template <Index kVectors, class Scalar>
std::int64_t hidden_bits(const Scalar* columns, Index row_stride, Index first, Index rows) {
  constexpr Index kColumns = kVectors * kPackWidth;
  constexpr Index kBytes = std::min<Index>(64, kColumns * static_cast<Index>(sizeof(Scalar)));
  constexpr Index kEntries = kBytes / static_cast<Index>(sizeof(Scalar));
  using Bits =
      std::conditional_t<sizeof(Scalar) == 2, std::int16_t,
                         std::conditional_t<sizeof(Scalar) == 4, std::int32_t, std::int64_t>>;
  typedef Bits Block __attribute__((vector_size(kBytes)));
  Block lane;
  for (Index k = 0; k < kEntries; ++k) lane[k] = static_cast<Bits>(k);
  Block seen{};
#pragma GCC unroll 4
  for (Index c = 0; c < kColumns; c += kEntries) {
    const Index last = std::min(first + c + kEntries - 1, rows);
    Index i = 0;
    for (; i < std::min(first + c, rows); ++i)
      seen |= vector_at<Block>(columns + i * row_stride + c);
    for (; i < last; ++i) {
      const Block hidden = lane > static_cast<Bits>(i - first - c) - Block{};
      seen |= vector_at<Block>(columns + i * row_stride + c) & hidden;
    }
  }
  Bits all = 0;
  for (Index k = 0; k < kEntries; ++k) all = static_cast<Bits>(all | seen[k]);
  return all & std::numeric_limits<Bits>::max();
}

// Whether row 0 alone shows that a map is not causal, as it does in most that are not.
template <class Scalar>
bool first_row_sees_more(const MatrixView<Scalar>& attention, Index shift) {
  const Index n = attention.cols();
  const Index behind = std::clamp<Index>(shift + 1, 0, n);
  return any_nonzero(attention.data() + behind, n - behind, 1);
}

// Column sums of a matrix whose rows are contiguous and at least a vector long, where with `causal`
// query i sees the keys up to i + shift; false where another entry is not 0. Each column adds its
// rows in order, as `add` does.
template <class Scalar>
bool sum_columns(const MatrixView<Scalar>& attention, bool causal, Index shift, double* sums) {
  const Index rows = attention.rows();
  const Index n = attention.cols();
  const Index stride = attention.outerStride();
  if (causal && first_row_sees_more(attention, shift)) return false;
  bool is_hidden_zero = true;
  const auto strip = [&]<Index kVectors>(Index j) {
    const Scalar* columns = attention.data() + j;
    if (causal && hidden_bits<kVectors>(columns, stride, j - shift, rows) != 0)
      is_hidden_zero = false;
    // No query before the one at column j sees the strip.
    const Index begin = causal ? std::clamp<Index>(j - shift, 0, rows) : 0;
    sum_strip<kVectors>(columns, stride, begin, rows, sums + j);
    return is_hidden_zero;
  };
  Index j = 0;
  // Wide strips read along the rows; narrow ones leave out more of what a causal map hides.
  if (!causal) {
#if defined(ATTNSCOPE_AVX512_PACKS)
    // as many sums as half the registers hold
    for (; j + 16 * kPackWidth <= n; j += 16 * kPackWidth) strip.template operator()<16>(j);
#endif
    for (; j + 8 * kPackWidth <= n; j += 8 * kPackWidth) strip.template operator()<8>(j);
  }
  for (; j + 4 * kPackWidth <= n; j += 4 * kPackWidth) {
    if (!strip.template operator()<4>(j)) return false;
  }
  for (; j + kPackWidth <= n; j += kPackWidth) {
    if (!strip.template operator()<1>(j)) return false;
  }
  // The columns that are left, with some before them once more.
  return j == n || strip.template operator()<1>(n - kPackWidth);
}

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
  if (is_small && entropy == nullptr && attention.innerStride() == 1 && n >= kPackWidth) {
    scratch.sums.resize(n);
    double* sums = scratch.sums.data();
    if (!sum_columns(attention, n >= 2, support.shift, sums)) {
      support.kind = Support::Kind::full;
      sum_columns(attention, false, support.shift, sums);
    }
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
