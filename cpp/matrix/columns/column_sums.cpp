// SPDX-License-Identifier: MIT
#include "matrix/columns/column_sums.h"

#include <algorithm>

#include "matrix/rows.h"
#include "simd/lane_sums.h"

namespace attnscope {
namespace {

// Rows whose hidden entries are looked at before their seen ones are added.
constexpr Index kBand = 8;

// Vectors of columns whose sums are in registers together, half of these at most.
constexpr Index kMostVectors = kPackWidth == 8 ? 16 : 8;

// Or'ed bits, without signs, of the hidden ends of some rows: kBlock entries at a time, no more
// than a row holds.
template <class Scalar, Index kBlock>
class HiddenBits {
 public:
  HiddenBits() {
    for (Index k = 0; k < kBlock; ++k) lane_[k] = static_cast<Bits>(k);
  }

  // Entries [begin, end) of a row.
  void add(const Scalar* row, Index begin, Index end) {
    // The first lies in a whole vector of the row, of which other lanes may be seen.
    const Index first = std::min(begin, end - kBlock);
    const Block hidden = lane_ >= static_cast<Bits>(begin - first) - Block{};
    bits_ |= vector_at<Block>(row + first) & hidden;
    Index j = first + kBlock;
    for (; j + kBlock <= end; j += kBlock) bits_ |= vector_at<Block>(row + j);
    if (j < end) bits_ |= vector_at<Block>(row + end - kBlock);
  }

  bool any() const {
    const Block magnitudes = bits_ & std::numeric_limits<Bits>::max();
    if constexpr (sizeof(Block) % sizeof(std::int64_t) == 0) {
      std::int64_t words[sizeof(Block) / sizeof(std::int64_t)];
      std::memcpy(words, &magnitudes, sizeof(words));
      std::int64_t all = 0;
      for (const std::int64_t word : words) all |= word;
      return all != 0;
    } else {
      Bits all = 0;
      for (Index k = 0; k < kBlock; ++k) all = static_cast<Bits>(all | magnitudes[k]);
      return all != 0;
    }
  }

 private:
  using Bits =
      std::conditional_t<sizeof(Scalar) == 2, std::int16_t,
                         std::conditional_t<sizeof(Scalar) == 4, std::int32_t, std::int64_t>>;
  typedef Bits Block __attribute__((vector_size(kBlock * sizeof(Scalar))));
  Block lane_;
  Block bits_{};
};

// A 1 that the compiler does not know to be one.
const volatile double kOne = 1.0;

// A product with 1 changes no number, and processors that multiply and add in one step do that with
// other units than those that widen, which are all busy.
inline Lanes plus(Lanes sum, Lanes x, [[maybe_unused]] Lanes one) {
#if defined(__FMA__)
  return one * x + sum;
#else
  return sum + x;
#endif
}

// Adds rows of kVectors vectors of columns to their sums.
template <Index kVectors, class Scalar>
void add_strip(const Scalar* columns, Index row_stride, Index rows, double* sums) {
  const Lanes one = broadcast(kOne);
  Lanes total[kVectors];
#pragma GCC unroll 16
  for (Index v = 0; v < kVectors; ++v) total[v] = load(sums + v * kPackWidth);
  for (Index i = 0; i < rows; ++i) {
    const Scalar* row = columns + i * row_stride;
#pragma GCC unroll 16
    for (Index v = 0; v < kVectors; ++v) total[v] = plus(total[v], load(row + v * kPackWidth), one);
  }
#pragma GCC unroll 16
  for (Index v = 0; v < kVectors; ++v) store(sums + v * kPackWidth, total[v]);
}

// The same of up to kCount vectors.
template <Index kCount, class Scalar>
void add_vectors(Index vectors, const Scalar* columns, Index row_stride, Index rows, double* sums) {
  if (vectors == kCount) return add_strip<kCount>(columns, row_stride, rows, sums);
  if constexpr (kCount > 1) add_vectors<kCount - 1>(vectors, columns, row_stride, rows, sums);
}

// The same of columns [0, end), of which the last that fill no vector go to `rest`, beside those
// before them.
template <class Scalar>
void add_rows(const Scalar* data, Index row_stride, Index rows, Index columns, Index end,
              double* sums, double* rest) {
  const Index whole = columns / kPackWidth * kPackWidth;
  const Scalar* last = data + columns - kPackWidth;
  // Of a vector that is seen in part the hidden entries are 0.
  Index vectors = (std::min(end, whole) + kPackWidth - 1) / kPackWidth;
  for (; vectors >= kMostVectors; vectors -= kMostVectors) {
    add_strip<kMostVectors>(data, row_stride, rows, sums);
    data += kMostVectors * kPackWidth;
    sums += kMostVectors * kPackWidth;
  }
  if (vectors >= 8) {
    add_strip<8>(data, row_stride, rows, sums);
    data += 8 * kPackWidth;
    sums += 8 * kPackWidth;
    vectors -= 8;
  }
  if (vectors > 0) add_vectors<7>(vectors, data, row_stride, rows, sums);
  if (end > whole) add_strip<1>(last, row_stride, rows, rest);
}

// Whether rows [first, last) show that a map is not causal.
template <Index kBlock, class Scalar>
bool any_hidden(const MatrixView<Scalar>& rows, Index heads, Index shift, Index first, Index last) {
  HiddenBits<Scalar, kBlock> bits;
  for (Index i = first; i < last; ++i) {
    const Index begin = std::clamp<Index>((i + shift + 1) * heads, 0, rows.cols());
    if (begin < rows.cols()) bits.add(rows.data() + i * rows.outerStride(), begin, rows.cols());
  }
  return bits.any();
}

// All rows, or, with `causal`, those before the first band that shows otherwise; whether none did.
template <class Scalar>
bool add_bands(const MatrixView<Scalar>& rows, Index heads, Index shift, bool causal,
               double* sums) {
  const Index columns = rows.cols();
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(Scalar));
  const auto is_hidden_nonzero = [&](Index first, Index last) {
    if (columns >= kLine) return any_hidden<kLine>(rows, heads, shift, first, last);
    return any_hidden<kPackWidth>(rows, heads, shift, first, last);
  };
  double rest[kPackWidth] = {};
  std::fill(sums, sums + columns, 0.0);
  const Index band = causal ? kBand : rows.rows();
  for (Index first = 0; first < rows.rows(); first += band) {
    const Index last = std::min<Index>(first + band, rows.rows());
    Index end = columns;
    if (causal) {
      if (is_hidden_nonzero(first, last)) return false;
      end = std::clamp<Index>((last + shift) * heads, 0, columns);
    }
    add_rows(rows.data() + first * rows.outerStride(), rows.outerStride(), last - first, columns,
             end, sums, rest);
  }
  for (Index k = columns / kPackWidth * kPackWidth; k < columns; ++k)
    sums[k] = rest[k - columns + kPackWidth];
  return true;
}

}  // namespace

template <class Scalar>
bool has_summable_columns(const MatrixView<Scalar>& rows) {
  return rows.innerStride() == 1 && rows.cols() >= kPackWidth;
}

template <class Scalar>
bool sum_columns(const MatrixView<Scalar>& rows, Index heads, Index shift, bool find_causal,
                 double* sums) {
  // Row 0 alone shows of most maps that are not causal that they are not.
  const Index behind = std::clamp<Index>((shift + 1) * heads, 0, rows.cols());
  const bool may_be_causal =
      find_causal && !any_nonzero(rows.data() + behind, rows.cols() - behind, 1);
  if (may_be_causal && add_bands(rows, heads, shift, true, sums)) return true;
  add_bands(rows, heads, shift, false, sums);
  return false;
}

bool are_finite(const double* sums, Index count, Index stride) {
  Lanes zeros{};
  Index j = 0;
  for (; stride == 1 && j + kPackWidth <= count; j += kPackWidth) zeros += load(sums + j) * 0.0;
  double zero = sum_by_halves(zeros);
  for (; j < count; ++j) zero += sums[j * stride] * 0.0;
  return zero == 0.0;
}

ATTNSCOPE_COMPILE(has_summable_columns);
ATTNSCOPE_COMPILE(sum_columns);

}  // namespace attnscope
