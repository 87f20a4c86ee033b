// SPDX-License-Identifier: MIT
#pragma once

#include "simd/memory.h"

// Distances between the points of a cloud.
namespace attnscope {

// `cosine` is ½‖u − v‖² of unit vectors, which is 1 − cos and exactly 0 for equal ones.
enum class PointMetric { euclidean, cosine };

// Points of a cloud stand in rows of `point_stride(width)` numbers, zeros behind the width, and
// `point_rows(n)` rows, zeros behind the last point; the first on a cache line's boundary.
Index point_stride(Index width);
Index point_rows(Index n);

// Rows [begin, end) of the distances of n points to those before them, each written to both places
// of `distances` [n, ·], rows `row_stride` apart, and 0 on the diagonal; `begin` is a multiple of
// kDistanceRows. `unit` vectors for cosine. A distance is a sum in an order that only the width
// decides, so it does not depend on the other points, and equal points are at exactly 0. Only a
// distance that no number holds is infinite. Cost O((end − begin)·n·width).
inline constexpr Index kDistanceRows = 32;
void row_distances(const double* points, Index n, Index width, PointMetric metric, Index begin,
                   Index end, double* distances, Index row_stride);

}  // namespace attnscope
