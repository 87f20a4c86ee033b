// SPDX-License-Identifier: MIT
#include "matrix/matrix_view.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>


namespace attnscope {
namespace {

// The entry's bits without its sign, which order as magnitudes do.
template <class Scalar>
auto magnitude_bits(const Scalar* entry) {
  using Bits = std::conditional_t<
      sizeof(Scalar) == 2, std::uint16_t,
      std::conditional_t<sizeof(Scalar) == 4, std::uint32_t, std::uint64_t>>;
  Bits bits;
  std::memcpy(&bits, entry, sizeof(bits));
  return static_cast<Bits>(bits & (std::numeric_limits<Bits>::max() >> 1));
}

// What a loop looks at in one go, a cache line; the last block of a run may overlap the one before.
constexpr Index kBlockBytes = 64;
// Lines that are fetched ahead of the one that is looked at.
constexpr Index kAhead = 4;

template <class Scalar>
auto infinity_bits() {
  const Scalar infinity = std::numeric_limits<Scalar>::infinity();
  return magnitude_bits(&infinity);
}

// Without a branch per entry, so that it vectorises.
template <class Scalar>
bool run_is_finite(const Scalar* run, Index n, Index stride) {
  if constexpr (sizeof(Scalar) == 8) {
    // No AVX2 instruction takes the larger of two 64-bit integers. A sum of x * 0 is 0 exactly when
    // every x is finite, and NaN otherwise.
    double strands[16] = {};
    Index j = 0;
    if (stride == 1) {
      for (; j + 16 <= n; j += 16) {
        for (Index k = 0; k < 16; ++k) strands[k] += run[j + k] * 0.0;
      }
    }
    for (; j < n; ++j) strands[0] += run[j * stride] * 0.0;
    double sum = 0.0;
    for (const double strand : strands) sum += strand;
    return sum == 0.0;
  } else {
    decltype(magnitude_bits(run)) largest = 0;
    constexpr Index kBlock = kBlockBytes / sizeof(Scalar);
    if (stride == 1 && n >= kBlock) {
      // Magnitudes have no sign bit, so signed numbers order them, and processors compare those.
      using Signed = std::conditional_t<sizeof(Scalar) == 2, std::int16_t, std::int32_t>;
      typedef Signed Block __attribute__((vector_size(kBlockBytes)));
      constexpr Signed kMagnitude = std::numeric_limits<Signed>::max();
      Block found{};
      const auto look = [&](Index j) {
        Block block;
        std::memcpy(&block, run + j, sizeof(block));
        block &= kMagnitude;
        found = block > found ? block : found;
      };
      for (Index j = 0; j + kBlock <= n; j += kBlock) look(j);
      look(n - kBlock);
      for (Index k = 0; k < kBlock; ++k) {
        largest = std::max(largest, static_cast<decltype(largest)>(found[k]));
      }
    } else {
      for (Index j = 0; j < n; ++j) largest = std::max(largest, magnitude_bits(run + j * stride));
    }
    return largest < infinity_bits<Scalar>();
  }
}

}  // namespace

template <class Scalar>
bool any_nonzero(const Scalar* run, Index n, Index stride) {
  decltype(magnitude_bits(run)) found = 0;
  constexpr Index kBlock = kBlockBytes / sizeof(Scalar);
  if (stride == 1 && n >= kBlock) {
    typedef decltype(found) Block __attribute__((vector_size(kBlockBytes)));
    Block seen{};
    const auto look = [&](Index j) {
      Block block;
      std::memcpy(&block, run + j, sizeof(block));
      seen |= block;
    };
    for (Index j = 0; j + kBlock <= n; j += kBlock) look(j);
    look(n - kBlock);
    for (Index k = 0; k < kBlock; ++k) found |= seen[k];
    found = static_cast<decltype(found)>(found & (std::numeric_limits<decltype(found)>::max() >> 1));
  } else {
    for (Index j = 0; j < n; ++j) found |= magnitude_bits(run + j * stride);
  }
  return found != 0;
}

template <class Scalar>
bool all_finite(const MatrixView<Scalar>& matrix) {
  const Index n = matrix.rows();
  const Index row_stride = matrix.outerStride();
  const Index column_stride = matrix.innerStride();
  // A transposed view is walked along its contiguous direction: the answer does not depend on order.
  const bool by_rows = column_stride <= row_stride;
  const Index outer = by_rows ? row_stride : column_stride;
  const Index inner = by_rows ? column_stride : row_stride;
  if (inner == 1 && outer == n) return run_is_finite(matrix.data(), n * n, 1);
  for (Index i = 0; i < n; ++i) {
    if (!run_is_finite(matrix.data() + i * outer, n, inner)) return false;
  }
  return true;
}

template <class Scalar>
bool is_causal(const MatrixView<Scalar>& matrix) {
  const Index n = matrix.rows();
  if (n < 2) return false;
  const Index row_stride = matrix.outerStride();
  const Index column_stride = matrix.innerStride();
  // Above the diagonal lie the ends of the rows and the heads of the columns: whichever is contiguous.
  const bool by_rows = column_stride <= row_stride;
  for (Index k = 0; k < n; ++k) {
    const Scalar* run = by_rows ? matrix.data() + k * row_stride + (k + 1) * column_stride
                                : matrix.data() + k * column_stride;
    if (any_nonzero(run, by_rows ? n - k - 1 : k, by_rows ? column_stride : row_stride)) return false;
  }
  return true;
}

template <class Scalar>
MatrixReading read_once(const MatrixView<Scalar>& matrix) {
  MatrixReading reading{true, matrix.rows() >= 2};
  read_lines(matrix, 0, matrix.rows(), reading);
  return reading;
}

template <class Scalar>
void read_lines(const MatrixView<Scalar>& matrix, Index begin, Index end, MatrixReading& reading) {
  const Index n = matrix.rows();
  const bool by_rows = lines_are_rows(matrix);
  const Index outer = by_rows ? matrix.outerStride() : matrix.innerStride();
  const Index inner = by_rows ? matrix.innerStride() : matrix.outerStride();
  bool& causal = reading.causal;
  for (Index k = begin; k < end && reading.finite; ++k) {
    const Scalar* run = matrix.data() + k * outer;
    // Processors look ahead within a page of memory, and a page holds few lines.
    if (inner == 1 && k + kAhead < n) {
      const Scalar* later = run + kAhead * outer;
      for (Index j = 0; j < n; j += kBlockBytes / static_cast<Index>(sizeof(Scalar))) {
        __builtin_prefetch(later + j);
      }
    }
    // Above the diagonal lies the end of a row and the head of a column.
    const Index hidden = by_rows ? k + 1 : 0;
    const Index hidden_count = by_rows ? n - k - 1 : k;
    causal = causal && !any_nonzero(run + hidden * inner, hidden_count, inner);
    const Index seen = causal && !by_rows ? k : 0;
    const Index seen_count = causal ? n - hidden_count : n;
    if (!run_is_finite(run + seen * inner, seen_count, inner)) reading = {false, false};
  }
}

ATTNSCOPE_COMPILE(any_nonzero);
ATTNSCOPE_COMPILE(all_finite);
ATTNSCOPE_COMPILE(is_causal);
ATTNSCOPE_COMPILE(read_once);
ATTNSCOPE_COMPILE(read_lines);

}  // namespace attnscope
