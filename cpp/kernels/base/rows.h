// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/base/lanes.h"
#include "kernels/base/row_scratch.h"
#include "kernels/base/support.h"

// Streams a matrix row by row, whatever its strides and element type. Only kernel sources include
// it.
namespace attnscope {

// kPackWidth entries of one row as float64.
inline Lanes load(const double* from) {
  Lanes lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return lanes;
}

inline Lanes load(const float* from) {
  typedef float Floats __attribute__((vector_size(kPackWidth * sizeof(float))));
  Floats lanes;
  std::memcpy(&lanes, from, sizeof(lanes));
  return __builtin_convertvector(lanes, Lanes);
}

// The first `count` < kPackWidth entries, then zeros.
template <class WideType>
Lanes load_head(const WideType* from, Index count) {
  Lanes lanes{};
  for (Index k = 0; k < count; ++k) lanes[k] = static_cast<double>(from[k]);
  return lanes;
}

inline void store(double* to, Lanes lanes) { std::memcpy(to, &lanes, sizeof(lanes)); }

inline double sum(Lanes lanes) {
  double total = 0.0;
  for (Index k = 0; k < kPackWidth; ++k) total += lanes[k];
  return total;
}

// A run of `count` contiguous entries, widened.
template <class Scalar>
void widen(const Scalar* from, Index count, Wide<Scalar>* to) {
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

// Calls visit(i, row, end) for every query i in order: row[0, end) are the entries that query i may
// see, contiguous and widened, invisible ones of a mask as 0; no visible key lies behind `end`.
// Rows whose entries already are contiguous and wide are handed out in place.
template <class Scalar, class Visit>
void for_each_row(const MatrixView<Scalar>& matrix, const Support& support, RowScratch& scratch,
                  Visit&& visit) {
  const Index n = matrix.rows();
  const Index row_stride = matrix.outerStride();
  const Index column_stride = matrix.innerStride();
  const bool masked = support.kind == Support::Kind::mask;
  if constexpr (std::is_same_v<Scalar, Wide<Scalar>>) {
    if (column_stride == 1 && !masked) {
      for (Index i = 0; i < n; ++i) visit(i, matrix.data() + i * row_stride, support.end(i, n));
      return;
    }
  }
  // A matrix whose columns are contiguous is read 16 rows at a time, so that a cache line is used
  // whole.
  const Index panel_rows = column_stride == 1 ? 1 : 16;
  auto& storage = [&]() -> auto& {
    if constexpr (std::is_same_v<Scalar, double>) {
      return scratch.doubles;
    } else {
      return scratch.floats;
    }
  }
  ();
  if (storage.size() < static_cast<std::size_t>(panel_rows * n)) {
    storage.resize(static_cast<std::size_t>(panel_rows * n));
  }
  Wide<Scalar>* panel = storage.data();
  for (Index first = 0; first < n; first += panel_rows) {
    const Index rows = std::min(panel_rows, n - first);
    const Index end = support.end(first + rows - 1, n);
    const Scalar* data = matrix.data() + first * row_stride;
    if (column_stride == 1) {
      widen(data, end, panel);
    } else {
      for (Index j = 0; j < end; ++j) {
        for (Index r = 0; r < rows; ++r) {
          panel[r * n + j] = static_cast<Wide<Scalar>>(data[r * row_stride + j * column_stride]);
        }
      }
    }
    for (Index r = 0; r < rows; ++r) {
      Wide<Scalar>* row = panel + r * n;
      if (masked) {
        for (Index j = 0; j < n; ++j) {
          if (!support.visible(first + r, j)) row[j] = 0;
        }
      }
      visit(first + r, static_cast<const Wide<Scalar>*>(row), support.end(first + r, n));
    }
  }
}

// Number of keys that query `i` of `n` can see.
inline Index visible_keys(const Support& support, Index i, Index n) {
  if (support.kind != Support::Kind::mask) return support.end(i, n);
  Index count = 0;
  for (Index j = 0; j < n; ++j) count += support.visible(i, j) ? 1 : 0;
  return count;
}

// Number of queries that can see each key, to counts [n].
inline void visible_queries(const Support& support, Index n, Index* counts) {
  if (support.kind != Support::Kind::mask) {
    for (Index j = 0; j < n; ++j) counts[j] = support.kind == Support::Kind::causal ? n - j : n;
    return;
  }
  std::fill(counts, counts + n, Index{0});
  for (Index i = 0; i < n; ++i) {
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
