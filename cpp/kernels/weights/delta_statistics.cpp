// SPDX-License-Identifier: MIT
#include "kernels/weights/delta_statistics.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "matrix/rows.h"

namespace attnscope {
namespace {

// Entries of a row that are subtracted and summed in one go. Tiles of so many columns and rows are
// read and summed row by row, whatever the strides, so that sums do not depend on those.
constexpr Index kTileColumns = 1024;
// A matrix whose columns are contiguous fills its cache lines with so many rows.
constexpr Index kTileRows = 32;

constexpr long kExponentBits = 0x7ff0000000000000;

// Bits behind the leading one, and the smallest normal number.
struct Format {
  int bits;
  double lowest;
};

template <class Scalar>
Format format_of() {
  using Limits = std::numeric_limits<Scalar>;
  return {Limits::digits - 1, static_cast<double>((Limits::min)())};
}

// Rows [row, row + rows) and columns [column, column + columns), one row behind the other.
template <class Scalar, class WideType>
void read_tile(const MatrixView<Scalar>& matrix, Index row, Index rows, Index column, Index columns,
               WideType* to) {
  const Index down = matrix.outerStride();
  const Index right = matrix.innerStride();
  const Scalar* from = matrix.data() + row * down + column * right;
  if (right == 1) {
    for (Index r = 0; r < rows; ++r) {
      if constexpr (std::is_same_v<WideType, Wide<Scalar>>) {
        widen_run(from + r * down, columns, to + r * columns);
      } else {
        for (Index c = 0; c < columns; ++c) {
          to[r * columns + c] = static_cast<WideType>(from[r * down + c]);
        }
      }
    }
    return;
  }
  for (Index c = 0; c < columns; ++c) {
    for (Index r = 0; r < rows; ++r) {
      to[r * columns + c] = static_cast<WideType>(from[r * down + c * right]);
    }
  }
}

// Sums of one pair, lane by lane.
class Sums {
 public:
  explicit Sums(const Format& coarser)
      : lowest_(broadcast(coarser.lowest)), unit_(std::ldexp(1.0, -coarser.bits)) {}

  template <class WideType>
  void add(const WideType* before, const WideType* after, const WideType* delta, Index count) {
    Index k = 0;
    for (; k + kPackWidth <= count; k += kPackWidth) {
      add<false>(load(before + k), load(after + k), load(delta + k), LaneMask{});
    }
    if (k == count) return;
    const Index left = count - k;
    add<true>(load_head(before + k, left, left), load_head(after + k, left, left),
              load_head(delta + k, left, left), first_lanes(left));
  }

  DeltaSums total() const {
    DeltaSums sums;
    sums.energy = sum_of_lanes(energy_);
    sums.before_energy = sum_of_lanes(before_energy_);
    sums.product = sum_of_lanes(product_);
    sums.before_steps = sum_of_lanes(before_steps_) * unit_ * unit_;
    sums.after_steps = sum_of_lanes(after_steps_) * unit_ * unit_;
    for (Index lane = 0; lane < kPackWidth; ++lane) {
      sums.unchanged += static_cast<double>(unchanged_[lane]);
      sums.largest = std::max(sums.largest, largest_[lane]);
    }
    sums.finite = sum_of_lanes(zeros_) == 0.0;
    return sums;
  }

 private:
  template <bool kMasked>
  void add(Lanes before, Lanes after, Lanes delta, LaneMask inside) {
    energy_ = multiply_add(delta, delta, energy_);
    before_energy_ = multiply_add(before, before, before_energy_);
    product_ = multiply_add(delta, before, product_);
    largest_ = larger(magnitude(delta), largest_);
    // 0 for a finite number, NaN for any other.
    zeros_ = multiply_add(before, Lanes{}, multiply_add(after, Lanes{}, zeros_));
    Lanes before_step = leading_power(before);
    Lanes after_step = leading_power(after);
    LaneMask unchanged = delta == 0.0;
    if constexpr (kMasked) {
      before_step = reinterpret_cast<Lanes>(reinterpret_cast<LaneMask>(before_step) & inside);
      after_step = reinterpret_cast<Lanes>(reinterpret_cast<LaneMask>(after_step) & inside);
      unchanged &= inside;
    }
    before_steps_ = multiply_add(before_step, before_step, before_steps_);
    after_steps_ = multiply_add(after_step, after_step, after_steps_);
    unchanged_ -= unchanged;
  }

  // 2^⌊log2|x|⌋, the smallest normal number of the coarser type below that.
  Lanes leading_power(Lanes x) const {
    const LaneMask exponent = reinterpret_cast<LaneMask>(x) & (kExponentBits - LaneMask{});
    return larger(reinterpret_cast<Lanes>(exponent), lowest_);
  }

  Lanes lowest_;
  double unit_;
  Lanes energy_{}, before_energy_{}, product_{}, before_steps_{}, after_steps_{}, largest_{},
      zeros_{};
  LaneMask unchanged_{};
};

}  // namespace

void DeltaSums::add(const DeltaSums& other) {
  energy += other.energy;
  before_energy += other.before_energy;
  product += other.product;
  before_steps += other.before_steps;
  after_steps += other.after_steps;
  unchanged += other.unchanged;
  largest = std::max(largest, other.largest);
  finite = finite && other.finite;
}

template <class Before, class After>
DeltaSums delta_sums(const MatrixView<Before>& before, const MatrixView<After>& after,
                     Difference<Before, After>* delta, Index delta_stride, RowScratch& scratch) {
  using WideType = Difference<Before, After>;
  const Index m = before.rows();
  const Index n = before.cols();
  assert(m >= 1 && n >= 1 && after.rows() == m && after.cols() == n);
  const Format before_format = format_of<Before>();
  const Format after_format = format_of<After>();
  Sums sums(before_format.bits < after_format.bits ? before_format : after_format);
  const bool row_by_row = before.innerStride() == 1 && after.innerStride() == 1;
  // Contiguous rows are read when they are summed, others a tile at a time.
  const Index read_rows = row_by_row ? 1 : kTileRows;
  const auto tile_size = static_cast<std::size_t>(read_rows * std::min(kTileColumns, n));
  auto& storage = scratch.of<WideType>();
  if (storage.size() < 2 * tile_size + kTileColumns) storage.resize(2 * tile_size + kTileColumns);
  WideType* a = storage.data();
  WideType* b = a + tile_size;
  WideType* d = b + tile_size;
  for (Index first = 0; first < m; first += kTileRows) {
    const Index last = std::min(first + kTileRows, m);
    for (Index column = 0; column < n; column += kTileColumns) {
      const Index columns = std::min(kTileColumns, n - column);
      for (Index row = first; row < last; row += read_rows) {
        const Index rows = std::min(read_rows, last - row);
        read_tile(before, row, rows, column, columns, a);
        read_tile(after, row, rows, column, columns, b);
        for (Index r = 0; r < rows; ++r) {
          const WideType* from = a + r * columns;
          const WideType* to = b + r * columns;
          for (Index k = 0; k < columns; ++k) d[k] = to[k] - from[k];
          sums.add(from, to, d, columns);
          if (delta != nullptr) std::copy_n(d, columns, delta + (row + r) * delta_stride + column);
        }
      }
    }
  }
  return sums.total();
}

#define ATTNSCOPE_INSTANTIATE_PAIR(Before, After) \
  template decltype(delta_sums<Before, After>) delta_sums<Before, After>;
#define ATTNSCOPE_INSTANTIATE(Before)             \
  ATTNSCOPE_INSTANTIATE_PAIR(Before, float)       \
  ATTNSCOPE_INSTANTIATE_PAIR(Before, double)      \
  ATTNSCOPE_INSTANTIATE_PAIR(Before, Eigen::half) \
  ATTNSCOPE_INSTANTIATE_PAIR(Before, Eigen::bfloat16)
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE
#undef ATTNSCOPE_INSTANTIATE_PAIR

}  // namespace attnscope
