// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "matrix/matrix_view.h"
#include "simd/number_lanes.h"

// Streams a matrix row by row, whatever its strides and element type. Only kernel sources include
// it.
namespace attnscope {

// kPackWidth entries of one row as float64.
inline Lanes load(const double* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

namespace portable {
inline Lanes load(const float* from) {
  typedef float Floats __attribute__((vector_size(kPackWidth * sizeof(float))));
  return __builtin_convertvector(vector_at<Floats>(from), Lanes);
}
}  // namespace portable

// GCC 12 splits __builtin_convertvector through memory where one instruction does it.
inline Lanes load(const float* from) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return reinterpret_cast<Lanes>(_mm512_cvtps_pd(_mm256_loadu_ps(from)));
#elif defined(ATTNSCOPE_AVX_PACKS)
  return reinterpret_cast<Lanes>(_mm256_cvtps_pd(_mm_loadu_ps(from)));
#else
  return portable::load(from);
#endif
}

// Half types are widened on the way, as widen_run does it.
inline Lanes load(const Eigen::bfloat16* from) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  const __m256i halves = _mm256_cvtepu16_epi32(vector_at<__m128i>(from));
  return reinterpret_cast<Lanes>(
      _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(halves, 16))));
#elif defined(ATTNSCOPE_AVX_PACKS)
  const __m128i halves =
      _mm_cvtepu16_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
  return reinterpret_cast<Lanes>(_mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(halves, 16))));
#else
  Lanes lanes;
  for (Index k = 0; k < kPackWidth; ++k)
    lanes[k] = static_cast<double>(static_cast<float>(from[k]));
  return lanes;
#endif
}
inline Lanes load(const Eigen::half* from) {
#if defined(ATTNSCOPE_AVX512_PACKS)
  return reinterpret_cast<Lanes>(_mm512_cvtps_pd(_mm256_cvtph_ps(vector_at<__m128i>(from))));
#elif defined(ATTNSCOPE_AVX_PACKS) && defined(__F16C__)
  return reinterpret_cast<Lanes>(
      _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))));
#else
  Lanes lanes;
  for (Index k = 0; k < kPackWidth; ++k)
    lanes[k] = static_cast<double>(static_cast<float>(from[k]));
  return lanes;
#endif
}

// All bits set in the first `count` lanes: in none where count <= 0, in all from kPackWidth on.
inline LaneMask first_lanes(Index count) {
  LaneMask lane;
  for (Index k = 0; k < kPackWidth; ++k) lane[k] = k;
  return lane < static_cast<long>(count) - LaneMask{};
}

// The first `count` entries and zeros behind them: zeros alone where count <= 0, from kPackWidth on
// a whole vector. `readable` entries may be read, no fewer than count: where that is a whole vector
// the rest is masked, which costs a tenth of gathering entries one by one.
template <class WideType>
Lanes load_head(const WideType* from, Index count, Index readable) {
  assert(count <= std::max<Index>(readable, 0));
  if (readable >= kPackWidth) {
    return reinterpret_cast<Lanes>(reinterpret_cast<LaneMask>(load(from)) & first_lanes(count));
  }
  Lanes lanes{};
  for (Index k = 0; k < count; ++k) lanes[k] = static_cast<double>(from[k]);
  return lanes;
}

// visit(lanes from entry j on, j) for entries [begin, end) of a row, zeros behind the last; `n`
// entries may be read.
template <class WideType, class Visit>
void for_each_lane(const WideType* row, Index begin, Index end, Index n, Visit&& visit) {
  Index j = begin;
  for (; j + kPackWidth <= end; j += kPackWidth) visit(load(row + j), j);
  if (j < end) visit(load_head(row + j, end - j, n - j), j);
}

inline void store(double* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof(lanes)); }

// A run of `count` >= 0 contiguous entries, widened.
template <class Scalar>
void widen_run(const Scalar* from, Index count, Wide<Scalar>* to) {
  assert(count >= 0);
  if constexpr (std::is_same_v<Scalar, Eigen::bfloat16>) {
    for (Index j = 0; j < count; ++j) {
      std::uint16_t half;
      std::memcpy(&half, from + j, sizeof(half));
      const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
      std::memcpy(to + j, &bits, sizeof(bits));
    }
  } else {
    using Run = Eigen::Array<Scalar, Eigen::Dynamic, 1>;
    using WideRun = Eigen::Array<Wide<Scalar>, Eigen::Dynamic, 1>;
    Eigen::Map<WideRun>(to, count) =
        Eigen::Map<const Run>(from, count).template cast<Wide<Scalar>>();
  }
}

// Reads single rows of a matrix, contiguous and widened, the invisible entries of a mask as 0. A
// row is handed out in place where its entries already are contiguous and wide; otherwise it is
// valid until the next row is read.
template <class Scalar>
class RowReader {
 public:
  // Rows that are read together where columns are contiguous, those from the first one asked for.
  static constexpr Index kPanelRows = 16;

  RowReader(const MatrixView<Scalar>& matrix, const Support& support, RowScratch& scratch)
      : matrix_(matrix), support_(support) {
    const Index column_stride = matrix.innerStride();
    const bool masked = support.kind == Support::Kind::mask;
    in_place_ = std::is_same_v<Scalar, Wide<Scalar>> && column_stride == 1 && !masked;
    if (in_place_) return;
    // A matrix whose columns are contiguous is read 16 rows at a time, so that a cache line is used
    // whole; in one whose rows are, or lie between those of other matrices, the same places of 16
    // rows would take turns in the same place of the cache.
    const bool apart = column_stride != 1 && column_stride > matrix.outerStride();
    panel_rows_ = apart ? kPanelRows : 1;
    auto& storage = scratch.of<Wide<Scalar>>();
    const auto size = static_cast<std::size_t>(panel_rows_ * matrix.cols());
    if (storage.size() < size) storage.resize(size);
    panel_ = storage.data();
  }

  const Wide<Scalar>* row(Index i) {
    assert(0 <= i && i < matrix_.rows());
    if constexpr (std::is_same_v<Scalar, Wide<Scalar>>) {
      if (in_place_) return matrix_.data() + i * matrix_.outerStride();
    }
    if (i < first_ || i >= last_) fill(i);
    return panel_ + (i - first_) * matrix_.cols();
  }

  // Whether all rows are handed out in place, so that several can be held at once.
  bool in_place() const { return in_place_; }

  // No key that query `i` can see lies behind it.
  Index end(Index i) const { return support_.end(i, matrix_.cols()); }

 private:
  void fill(Index from) {
    const Index n = matrix_.cols();
    first_ = from;
    last_ = std::min<Index>(matrix_.rows(), from + panel_rows_);
    const Index rows = last_ - first_;
    const Index end = support_.end(last_ - 1, n);
    const Index row_stride = matrix_.outerStride();
    const Index column_stride = matrix_.innerStride();
    const Scalar* data = matrix_.data() + first_ * row_stride;
    if (column_stride == 1) {
      assert(rows == 1);
      widen_run(data, end, panel_);
    } else if (panel_rows_ == 1) {
      for (Index j = 0; j < end; ++j)
        panel_[j] = static_cast<Wide<Scalar>>(data[j * column_stride]);
    } else {
      for (Index j = 0; j < end; ++j) {
        for (Index r = 0; r < rows; ++r) {
          panel_[r * n + j] = static_cast<Wide<Scalar>>(data[r * row_stride + j * column_stride]);
        }
      }
    }
    // Rows of several matrices are walked to their common end.
    for (Index r = 0; r < rows; ++r)
      std::fill(panel_ + r * n + end, panel_ + (r + 1) * n, Wide<Scalar>(0));
    if (support_.kind != Support::Kind::mask) return;
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < n; ++j) {
        if (!support_.visible(first_ + r, j)) panel_[r * n + j] = 0;
      }
    }
  }

  MatrixView<Scalar> matrix_;
  Support support_;
  bool in_place_ = false;
  Index panel_rows_ = 1;
  Wide<Scalar>* panel_ = nullptr;
  Index first_ = 0;
  Index last_ = 0;
};

// Calls visit(i, row, end) for every query i in order: row[0, end) are the entries that it may see.
template <class Scalar, class Visit>
void for_each_row(const MatrixView<Scalar>& matrix, const Support& support, RowScratch& scratch,
                  Visit&& visit) {
  RowReader<Scalar> reader(matrix, support, scratch);
  for (Index i = 0; i < matrix.rows(); ++i) visit(i, reader.row(i), reader.end(i));
}

// Number of the `n` keys that query `i` can see.
inline Index visible_keys(const Support& support, Index i, Index n) {
  if (support.kind != Support::Kind::mask) return support.end(i, n);
  Index count = 0;
  for (Index j = 0; j < n; ++j) count += support.visible(i, j) ? 1 : 0;
  return count;
}

// Number of `rows` queries that can see each of `n` keys, to counts [n].
inline void visible_queries(const Support& support, Index rows, Index n,
                            std::vector<Index>& counts) {
  counts.assign(n, 0);
  if (support.kind != Support::Kind::mask) {
    const bool causal = support.kind == Support::Kind::causal;
    for (Index j = 0; j < n; ++j) {
      counts[j] = causal ? rows - std::clamp<Index>(j - support.shift, 0, rows) : rows;
    }
    return;
  }
  for (Index i = 0; i < rows; ++i) {
    for (Index j = 0; j < n; ++j) counts[j] += support.visible(i, j) ? 1 : 0;
  }
}

// The smallest Wide number that is >= threshold, so that comparing an entry with it decides as
// comparing the exactly converted entry with the float64 threshold does.
template <class WideType>
WideType rounded_up(double threshold) {
  WideType value = static_cast<WideType>(threshold);
  if (static_cast<double>(value) < threshold) {
    value = std::nextafter(value, std::numeric_limits<WideType>::infinity());
  }
  return value;
}

}  // namespace attnscope
