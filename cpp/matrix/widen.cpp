// SPDX-License-Identifier: MIT
#include "matrix/widen.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "matrix/padded_vectors.h"
#include "matrix/rows.h"
#include "simd/transpose.h"

namespace attnscope {
namespace {

// Rows of sums of squares in this range are scaled as they are: neither they nor their entries have
// lost digits to over- or underflow.
constexpr double kSmallest = 1e-200;
constexpr double kLargest = 1e200;

template <class Scalar>
void widen_entries(const Scalar* from, Index stride, Index count, double* to) {
  if (stride == 1) {
    Index k = 0;
    for (; k + kPackWidth <= count; k += kPackWidth) store(to + k, load(from + k));
    for (; k < count; ++k) to[k] = static_cast<double>(from[k]);
  } else {
    for (Index k = 0; k < count; ++k) to[k] = static_cast<double>(from[k * stride]);
  }
}

// Σ x² of a contiguous row, NaN or infinite where an entry is; calls put(k, x) for each vector of x
// and each number x behind the last vector.
template <class Scalar, class Put>
double squares_of(const Scalar* from, Index width, Put&& put) {
  constexpr Index kChains = 4;  // since each sum waits for the last
  Lanes squares[kChains] = {};
  Index k = 0;
  for (; k + kChains * kPackWidth <= width; k += kChains * kPackWidth) {
#pragma GCC unroll 4
    for (Index v = 0; v < kChains; ++v) {
      const Lanes x = load(from + k + v * kPackWidth);
      put(k + v * kPackWidth, x);
      squares[v] += x * x;
    }
  }
  for (; k + kPackWidth <= width; k += kPackWidth) {
    const Lanes x = load(from + k);
    put(k, x);
    squares[0] += x * x;
  }
  double sum = sum_by_halves((squares[0] + squares[1]) + (squares[2] + squares[3]));
  for (; k < width; ++k) {
    const auto x = static_cast<double>(from[k]);
    put(k, x);
    sum += x * x;
  }
  return sum;
}

template <class Scalar>
double squares_of(const Scalar* row, Index width) {
  return squares_of(row, width, [](Index, auto) {});
}

// Copies a contiguous row to float64 as well.
template <class Scalar>
double widen_row_and_square(const Scalar* from, Index width, double* to) {
  return squares_of(from, width, [to]<class Numbers>(Index k, Numbers x) {
    if constexpr (std::is_same_v<Numbers, double>) {
      to[k] = x;
    } else {
      store(to + k, x);
    }
  });
}

// Copies a contiguous row to float64, times `scale`.
template <class Scalar>
void widen_scaled(const Scalar* from, double scale, Index width, double* to) {
  Index k = 0;
  for (; k + kPackWidth <= width; k += kPackWidth) store(to + k, load(from + k) * scale);
  for (; k < width; ++k) to[k] = static_cast<double>(from[k]) * scale;
}

// Scales a row to norm 1 by its largest entry first, so that no square over- or underflows; a row
// of zeros stays 0. Returns whether all entries are finite.
bool scale_far_row(double* row, Index width, bool unit) {
  const auto inside = [](double x) { return std::isfinite(x); };
  const bool finite = std::all_of(row, row + width, inside);
  if (!unit) return finite;
  const double largest = largest_magnitude(row, width);
  if (!(largest > 0.0)) return finite;
  for (Index k = 0; k < width; ++k) row[k] /= largest;
  scale_vector(row, 1.0 / std::sqrt(squares_of(row, width)), width);
  return finite;
}

}  // namespace

double largest_magnitude(const double* values, Index count) {
  Lanes even{}, odd{};
  const auto at = [values](Index j) {
    LaneMask bits;
    std::memcpy(&bits, values + j, sizeof(bits));
    return reinterpret_cast<Lanes>(bits & std::numeric_limits<long>::max());
  };
  Index j = 0;
  for (; j + 2 * kPackWidth <= count; j += 2 * kPackWidth) {
    even = larger(even, at(j));
    odd = larger(odd, at(j + kPackWidth));
  }
  even = larger(even, odd);
  double largest = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) largest = std::max(largest, even[lane]);
  for (; j < count; ++j) largest = std::max(largest, std::abs(values[j]));
  return largest;
}

bool narrow(const double* numbers, Index count, float* out) {
  for (Index k = 0; k < count; ++k) out[k] = static_cast<float>(numbers[k]);
  const double largest = largest_magnitude(numbers, count);
  return largest == 0.0 || (largest > 1e-15 && largest < 1e15);
}

double safe_scale(double largest) {
  return largest == 0.0 || (largest > 1e-30 && largest < 1e30) ? 1.0 : unit_power(largest);
}

double unit_power(double magnitude) {
  int exponent = 0;
  std::frexp(magnitude < std::numeric_limits<double>::max() ? magnitude
                                                            : std::numeric_limits<double>::max(),
             &exponent);
  // 2^1022 is the largest power of two whose square root's neighbours are all normal numbers.
  return std::ldexp(1.0, std::clamp(-exponent, -1022, 1022));
}

template <class Scalar>
void widen_row(const MatrixView<Scalar>& matrix, Index i, Index count, double* out) {
  widen_entries(matrix.data() + i * matrix.outerStride(), matrix.innerStride(), count, out);
}

template <class Scalar>
void interleave_row(std::span<const MatrixView<Scalar>> matrices, Index i, Index count,
                    double* lines, double* out) {
  assert(1 <= matrices.size() && static_cast<Index>(matrices.size()) <= kPackWidth);
  for (std::size_t lane = 0; lane < matrices.size(); ++lane) {
    widen_row(matrices[lane], i, count, lines + static_cast<Index>(lane) * count);
  }
  std::fill(lines + static_cast<Index>(matrices.size()) * count, lines + kPackWidth * count, 0.0);
  Index j = 0;
  for (; j + kPackWidth <= count; j += kPackWidth) {
    Lanes tile[kPackWidth];
    for (Index lane = 0; lane < kPackWidth; ++lane) tile[lane] = load(lines + lane * count + j);
    transpose_lanes(tile);
    for (Index k = 0; k < kPackWidth; ++k) store(out + (j + k) * kPackWidth, tile[k]);
  }
  for (; j < count; ++j) {
    for (Index lane = 0; lane < kPackWidth; ++lane)
      out[j * kPackWidth + lane] = lines[lane * count + j];
  }
}

template <class Scalar>
double widen(const MatrixView<Scalar>& matrix, double* out, Index ld) {
  const Index rows = matrix.rows();
  const Index n = matrix.cols();
  double largest = 0.0;
  for (Index i = 0; i < rows; ++i) {
    double* row = out + i * ld;
    widen_row(matrix, i, n, row);
    largest = std::max(largest, largest_magnitude(row, n));
  }
  const double scale = safe_scale(largest);
  for (Index i = 0; i < rows && scale != 1.0; ++i) scale_vector(out + i * ld, scale, n);
  return scale;
}

namespace {

constexpr auto kSide = static_cast<Index>(kTile);

// to[m·to_stride + j] = from[j·from_stride + m] for kSide of either.
template <class Scalar>
void turn_tile(const Scalar* from, Index from_stride, Scalar* to, Index to_stride) {
  if constexpr (std::is_same_v<Scalar, Wide<Scalar>>) {
    transpose_tile(from, from_stride, to, to_stride);
  } else {
    typedef std::uint16_t Halves __attribute__((vector_size(16)));
    Halves rows[kSide];
    for (Index j = 0; j < kSide; ++j) rows[j] = vector_at<Halves>(from + j * from_stride);
    // Entries, pairs and fours of two rows in turn; three times makes columns of rows.
    for (int step = 0; step < 3; ++step) {
      Halves mixed[kSide];
      for (Index j = 0; j < kSide / 2; ++j) {
        const Halves a = rows[j];
        const Halves b = rows[j + kSide / 2];
        mixed[2 * j] = Halves{a[0], b[0], a[1], b[1], a[2], b[2], a[3], b[3]};
        mixed[2 * j + 1] = Halves{a[4], b[4], a[5], b[5], a[6], b[6], a[7], b[7]};
      }
      std::copy_n(mixed, kSide, rows);
    }
    for (Index m = 0; m < kSide; ++m) put(static_cast<void*>(to + m * to_stride), rows[m]);
  }
}

}  // namespace

template <class Scalar>
void separate(const MatrixView<Scalar>& first, Index count, Index apart, Scalar* out) {
  assert(apart >= first.size());
  const Index columns = first.cols();
  const Index step = first.innerStride();
  const bool in_tiles = count >= kSide && columns >= kSide;
  for (Index i = 0; i < first.rows(); ++i) {
    const Scalar* row = first.data() + i * first.outerStride();
    Scalar* to = out + i * columns;
    for (Index j = 0; in_tiles && j < columns; j += kSide) {
      // The last tile of either may overlap the one before.
      const Index left = std::min(j, columns - kSide);
      for (Index m = 0; m < count; m += kSide) {
        const Index top = std::min(m, count - kSide);
        turn_tile(row + left * step + top, step, to + top * apart + left, apart);
      }
    }
    for (Index m = 0; !in_tiles && m < count; ++m) {
      for (Index j = 0; j < columns; ++j) to[m * apart + j] = row[j * step + m];
    }
  }
}

template <class Scalar>
bool widen_states(const Scalar* states, Index row_stride, Index column_stride, Index width,
                  Index begin, Index end, bool unit, double* out) {
  bool finite = true;
  // Rows are read twice where they are scaled, which takes less time than to write them twice.
  const bool reads_twice = unit && column_stride == 1;
  // A pack of rows at a time, whose roots and quotients are taken together.
  for (Index first = begin; first < end; first += kPackWidth) {
    const Index count = std::min(kPackWidth, end - first);
    Lanes squares{};
    for (Index r = 0; r < count; ++r) {
      double* row = out + (first + r) * width;
      const Scalar* from = states + (first + r) * row_stride;
      if (reads_twice) {
        squares[r] = squares_of(from, width);
      } else if (column_stride == 1) {
        squares[r] = widen_row_and_square(from, width, row);
      } else {
        widen_entries(from, column_stride, width, row);
        squares[r] = squares_of(row, width);
      }
    }
    const Lanes scales = 1.0 / square_root(squares);
    for (Index r = 0; r < count; ++r) {
      double* row = out + (first + r) * width;
      const Scalar* from = states + (first + r) * row_stride;
      if (squares[r] > kSmallest && squares[r] < kLargest) {
        if (reads_twice) {
          widen_scaled(from, scales[r], width, row);
        } else if (unit) {
          scale_vector(row, scales[r], width);
        }
      } else {
        if (reads_twice) widen_entries(from, column_stride, width, row);
        finite = scale_far_row(row, width, unit) && finite;
      }
    }
  }
  return finite;
}

ATTNSCOPE_COMPILE(widen_row);
ATTNSCOPE_COMPILE(interleave_row);
ATTNSCOPE_COMPILE(widen);
ATTNSCOPE_COMPILE(separate);
ATTNSCOPE_COMPILE(widen_states);

}  // namespace attnscope
