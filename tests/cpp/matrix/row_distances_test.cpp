// SPDX-License-Identifier: MIT
#include "matrix/row_distances.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "matrices.h"
#include "simd/memory.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

RowMatrix<double> points_of(Index n, Index width, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  RowMatrix<double> points(n, width);
  for (Index k = 0; k < points.size(); ++k) points.data()[k] = normal(generator);
  return points;
}

RowMatrix<double> distances_of(const RowMatrix<double>& points, PointMetric metric) {
  const Index n = points.rows();
  const Index width = points.cols();
  const Index stride = point_stride(width);
  AlignedBuffer buffer;
  double* rows = buffer.resize(point_rows(n) * stride);
  std::fill_n(rows, point_rows(n) * stride, 0.0);
  for (Index i = 0; i < n; ++i) {
    for (Index k = 0; k < width; ++k) rows[i * stride + k] = points(i, k);
  }
  RowMatrix<double> out = RowMatrix<double>::Constant(n, n + 2, -1.0);
  for (Index begin = 0; begin < n; begin += kDistanceRows) {
    const Index end = std::min(begin + kDistanceRows, n);
    row_distances(rows, n, width, metric, begin, end, out.data(), n + 2);
  }
  EXPECT_TRUE((out.rightCols(2).array() == -1.0).all());
  return out.leftCols(n);
}

TEST(RowDistances, AreThoseOfTheTextbook) {
  for (const Index n : {1, 2, 3, 4, 5, 31, 32, 33, 70}) {
    for (const Index width : {1, 7, 8, 9, 511, 512, 513, 1030}) {
      const RowMatrix<double> points = points_of(n, width, unsigned(n + width));
      const RowMatrix<double> distances = distances_of(points, PointMetric::euclidean);
      const RowMatrix<double> halves = distances_of(points, PointMetric::cosine);
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < n; ++j) {
          const double squares = (points.row(i) - points.row(j)).squaredNorm();
          EXPECT_NEAR(distances(i, j), std::sqrt(squares), 1e-14 * std::sqrt(squares));
          EXPECT_NEAR(halves(i, j), 0.5 * squares, 1e-14 * squares);
        }
      }
    }
  }
}

TEST(RowDistances, DoNotDependOnTheOtherPoints) {
  const RowMatrix<double> points = points_of(41, 700, 1);
  const RowMatrix<double> of_all = distances_of(points, PointMetric::euclidean);
  EXPECT_EQ(of_all, RowMatrix<double>(of_all.transpose()));
  const Index chosen[] = {40, 3, 17, 18, 19, 0, 33};
  RowMatrix<double> part(7, 700);
  for (Index i = 0; i < 7; ++i) part.row(i) = points.row(chosen[i]);
  const RowMatrix<double> of_part = distances_of(part, PointMetric::euclidean);
  for (Index i = 0; i < 7; ++i) {
    for (Index j = 0; j < 7; ++j) EXPECT_EQ(of_part(i, j), of_all(chosen[i], chosen[j]));
  }
}

TEST(RowDistances, EqualPointsAreAtExactlyNothing) {
  RowMatrix<double> points = points_of(9, 600, 2);
  points.row(7) = points.row(2);
  for (const PointMetric metric : {PointMetric::euclidean, PointMetric::cosine}) {
    const RowMatrix<double> distances = distances_of(points, metric);
    EXPECT_EQ(distances(7, 2), 0.0);
    EXPECT_EQ((distances.array() == 0.0).count(), 11);
  }
}

}  // namespace
}  // namespace attnscope
