// SPDX-License-Identifier: MIT
#include "matrix/row_distances.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "matrix/rows.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

// Points whose differences are summed side by side: kAcross rows with kDown earlier ones.
constexpr Index kAcross = 4;
constexpr Index kDown = 2;
// Numbers of a point that are summed before the next point's, so that all stay in the cache.
constexpr Index kChunk = 512;
constexpr Index kLine = 8;

static_assert(kDistanceRows % kAcross == 0 && kAcross % kDown == 0 && kLine % kPackWidth == 0);

// Adds Σ (a_k − b_k)² over k < count of kAcross x kDown pairs to `sums`.
void add_tile(const double* rows, const double* others, Index stride, Index count,
              double sums[kAcross][kDown]) {
  Lanes lanes[kAcross][kDown] = {};
  for (Index k = 0; k < count; k += kPackWidth) {
    Lanes other[kDown];
    for (Index c = 0; c < kDown; ++c) other[c] = load(others + c * stride + k);
    for (Index r = 0; r < kAcross; ++r) {
      const Lanes row = load(rows + r * stride + k);
      for (Index c = 0; c < kDown; ++c) {
        const Lanes difference = row - other[c];
        lanes[r][c] = multiply_add(difference, difference, lanes[r][c]);
      }
    }
  }
  for (Index r = 0; r < kAcross; ++r) {
    for (Index c = 0; c < kDown; ++c) sums[r][c] += sum_of_lanes(lanes[r][c]);
  }
}

// Sums of squares outside of these have lost digits, or hold no distance at all.
constexpr double kSmallestSquares = 1e-280;
constexpr double kLargestSquares = 1e300;

// ‖a − b‖ of points whose squares leave float64's range: the coordinates are scaled first. 0 for
// equal points.
double scaled_distance(const double* a, const double* b, Index width) {
  double largest = 0.0;
  // A quarter of each, because a difference can exceed the largest number.
  for (Index k = 0; k < width; ++k)
    largest = std::max(largest, std::abs(0.25 * a[k] - 0.25 * b[k]));
  if (largest == 0.0) {
    for (Index k = 0; k < width; ++k) largest = std::max(largest, std::abs(a[k] - b[k]));
    if (largest == 0.0) return 0.0;
  }
  const double scale = unit_power(largest);
  double squares = 0.0;
  for (Index k = 0; k < width; ++k) {
    const double difference = scale * a[k] - scale * b[k];
    squares += difference * difference;
  }
  return std::sqrt(squares) / scale;
}

}  // namespace

Index point_stride(Index width) { return (width + kLine - 1) / kLine * kLine; }

Index point_rows(Index n) { return (n + kAcross - 1) / kAcross * kAcross; }

void row_distances(const double* points, [[maybe_unused]] Index n, Index width, PointMetric metric,
                   Index begin, Index end, double* distances, Index row_stride) {
  assert(begin % kDistanceRows == 0 && end <= n);
  const Index stride = point_stride(width);
  // The lower half holds sums of squares until all chunks are in.
  for (Index i = begin; i < end; ++i) {
    std::fill_n(distances + i * row_stride, i + 1, 0.0);
  }
  for (Index from = 0; from < width; from += kChunk) {
    const Index count = std::min(kChunk, stride - from);
    for (Index i = begin; i < end; i += kAcross) {
      const Index last = std::min(i + kAcross, end);
      for (Index j = 0; j < last; j += kDown) {
        double sums[kAcross][kDown] = {};
        add_tile(points + i * stride + from, points + j * stride + from, stride, count, sums);
        for (Index r = i; r < last; ++r) {
          for (Index c = j; c < std::min(j + kDown, r); ++c) {
            distances[r * row_stride + c] += sums[r - i][c - j];
          }
        }
      }
    }
  }
  for (Index i = begin; i < end; ++i) {
    for (Index j = 0; j < i; ++j) {
      const double squares = distances[i * row_stride + j];
      double distance = 0.5 * squares;
      if (metric == PointMetric::euclidean) {
        const bool in_range = squares > kSmallestSquares && squares < kLargestSquares;
        distance = in_range ? std::sqrt(squares)
                            : scaled_distance(points + i * stride, points + j * stride, width);
      }
      distances[i * row_stride + j] = distances[j * row_stride + i] = distance;
    }
  }
}

}  // namespace attnscope
