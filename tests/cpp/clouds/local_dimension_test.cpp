// SPDX-License-Identifier: MIT
#include "kernels/clouds/local_dimension.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// Points of a line, in one, two, four, ... steps; some pairs equal.
RowMatrix<double> line(const std::vector<double>& at) {
  const auto n = static_cast<Index>(at.size());
  RowMatrix<double> distances(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) distances(i, j) = std::abs(at[i] - at[j]);
  }
  return distances;
}

RowMatrix<double> random_distances(Index n, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> uniform(0.1, 1.0);
  RowMatrix<double> distances = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) distances(i, j) = distances(j, i) = uniform(generator);
  }
  return distances;
}

template <class Scalar>
Neighbours found_in(const RowMatrix<Scalar>& distances, Index most = -1,
                    const std::int64_t* groups = nullptr) {
  Neighbours neighbours;
  NeighbourScratch scratch;
  reset_neighbours(distances.rows(), neighbours);
  for (Index i = 0; i < distances.rows(); ++i) {
    sort_neighbours(view(distances), groups, i, most, neighbours, neighbours.equal, scratch);
    neighbours.equal_begin[i + 1] = static_cast<Index>(neighbours.equal.size());
  }
  return neighbours;
}

struct Answer {
  std::vector<double> value;
  std::vector<double> points;
  std::vector<std::int64_t> used;
  std::vector<std::int64_t> tied;
  Index duplicates;
};

Answer answer(const Neighbours& neighbours, const std::vector<Index>& k,
              const bool* member = nullptr) {
  const auto count = static_cast<Index>(k.size());
  Answer dimension{std::vector<double>(count), std::vector<double>(count * neighbours.n, -1.0),
                   std::vector<std::int64_t>(count, 7), std::vector<std::int64_t>(count, 7), 0};
  std::vector<double> scratch;
  const LocalDimensionResult result{dimension.value.data(), dimension.points.data(),
                                    dimension.used.data(), dimension.tied.data()};
  dimension.duplicates = local_dimension(neighbours, member, k.data(), count, result, scratch);
  return dimension;
}

TEST(LocalDimension, OfThreePointsIsThreeHalves) {
  const double e = std::exp(1.0);
  const Answer dimension = answer(found_in(line({0.0, 1.0, e})), {2});
  EXPECT_NEAR(dimension.value[0], 1.5, 1e-14);
  EXPECT_EQ(dimension.used[0], 3);
  EXPECT_EQ(dimension.tied[0], 0);
  EXPECT_EQ(dimension.duplicates, 0);
  // A single neighbour beyond the nearest has no unbiased value of its own.
  EXPECT_EQ(dimension.points, std::vector<double>(3, -1.0));
}

TEST(LocalDimension, IsTheSumOfLogRatiosInAnyOrderOfK) {
  const RowMatrix<double> distances = random_distances(17, 1);
  const Neighbours neighbours = found_in(distances);
  const std::vector<Index> k = {9, 3, 16, 17, 2};
  const Answer dimension = answer(neighbours, k);
  for (std::size_t a = 0; a < k.size(); ++a) {
    double total = 0.0;
    std::int64_t used = 0;
    for (Index i = 0; i < 17; ++i) {
      std::vector<double> r;
      for (Index j = 0; j < 17; ++j) {
        if (j != i) r.push_back(distances(i, j));
      }
      std::sort(r.begin(), r.end());
      if (static_cast<Index>(r.size()) < k[a]) continue;
      double sum = 0.0;
      for (Index j = 0; j < k[a]; ++j) sum += std::log(r[k[a] - 1] / r[j]);
      ++used;
      total += sum;
      const double expected = k[a] > 2 ? double(k[a] - 2) / sum : -1.0;
      EXPECT_NEAR(dimension.points[a * 17 + i], expected, 1e-12 * std::abs(expected));
    }
    EXPECT_EQ(dimension.used[a], used);
    if (used == 0) {
      EXPECT_TRUE(std::isnan(dimension.value[a]));
    } else {
      EXPECT_NEAR(dimension.value[a], double((k[a] - 1) * used) / total,
                  1e-12 * dimension.value[a]);
    }
  }
}

TEST(LocalDimension, TheNearestAloneSuffice) {
  const RowMatrix<double> distances = random_distances(40, 2);
  const Answer all = answer(found_in(distances), {5, 12});
  const Answer few = answer(found_in(distances, 12), {5, 12});
  EXPECT_EQ(all.value, few.value);
  EXPECT_EQ(all.points, few.points);
  EXPECT_EQ(found_in(distances, 12).count, std::vector<Index>(40, 12));
  EXPECT_EQ(found_in(distances, 0).count, std::vector<Index>(40, 0));
}

TEST(LocalDimension, NothingIsReadOrWrittenBehindTheLastK) {
  const Neighbours neighbours = found_in(random_distances(9, 5));
  const Index k[] = {3, 2};
  double value[] = {-1.0, -1.0};
  std::vector<double> points(18, -1.0);
  std::int64_t used[] = {7, 7};
  std::int64_t tied[] = {7, 7};
  std::vector<double> scratch;
  local_dimension(neighbours, nullptr, k, 1, {value, points.data(), used, tied}, scratch);
  EXPECT_EQ(used[0], 9);
  EXPECT_EQ(value[1], -1.0);
  EXPECT_EQ(used[1], 7);
  EXPECT_EQ(tied[1], 7);
}

TEST(TwoNn, OfAlmostEqualDistances) {
  RowMatrix<double> distances = RowMatrix<double>::Zero(3, 3);
  distances(0, 1) = distances(1, 0) = 1.0;
  distances(0, 2) = distances(2, 0) = 1.1;
  distances(1, 2) = distances(2, 1) = 1.2;
  const Neighbours neighbours = found_in(distances);
  std::vector<double> scratch;
  EXPECT_NEAR(two_nn(neighbours, nullptr, 0.0, scratch), 1.0 / std::log(1.2), 1e-12);
  // A fraction that rounds to none leaves out the last, whose logarithm is infinite.
  EXPECT_TRUE(std::isfinite(two_nn(neighbours, nullptr, 1e-17, scratch)));
}

TEST(LocalDimension, EqualPointsAreNoNeighboursAndAreCounted) {
  // 0 twice, 5 three times, 9 once.
  const RowMatrix<double> distances = line({0.0, 5.0, 0.0, 9.0, 5.0, 5.0});
  const Neighbours neighbours = found_in(distances);
  EXPECT_EQ(neighbours.count, (std::vector<Index>{4, 3, 4, 5, 3, 3}));
  EXPECT_EQ(neighbours.equal, (std::vector<std::int32_t>{2, 4, 5, 0, 1, 5, 1, 4}));
  EXPECT_EQ(neighbours.equal_begin, (std::vector<Index>{0, 1, 3, 4, 4, 6, 8}));
  EXPECT_EQ(answer(neighbours, {2}).duplicates, 5);
  const bool member[] = {true, true, false, true, true, false};
  EXPECT_EQ(answer(neighbours, {2}, member).duplicates, 2);
  const Answer copies = answer(found_in(RowMatrix<double>(RowMatrix<double>::Zero(9, 9))), {2});
  EXPECT_TRUE(std::isnan(copies.value[0]));
  EXPECT_EQ(copies.duplicates, 9);
  EXPECT_EQ(copies.used[0], 0);
  EXPECT_EQ(copies.tied[0], 0);
}

TEST(LocalDimension, TiedPointsAreLeftOutAndCounted) {
  RowMatrix<double> distances = RowMatrix<double>::Constant(6, 6, 2.0);
  distances.diagonal().setZero();
  distances(0, 1) = distances(1, 0) = 1.0;
  const Answer dimension = answer(found_in(distances), {2, 5});
  EXPECT_EQ(dimension.tied, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(dimension.used, (std::vector<std::int64_t>{2, 2}));
  EXPECT_NEAR(dimension.value[0], 1.0 / std::log(2.0), 1e-14);
  EXPECT_EQ(dimension.points[6 + 2], -1.0);
  EXPECT_NEAR(dimension.points[6], 3.0 / std::log(2.0), 1e-14);
}

TEST(LocalDimension, NeighboursOfTheSameGroupAreLeftOut) {
  const RowMatrix<double> distances = random_distances(10, 3);
  const std::int64_t groups[] = {0, 1, 0, 1, 2, 2, 0, 1, 5, 0};
  const Neighbours neighbours = found_in(distances, -1, groups);
  for (Index i = 0; i < 10; ++i) {
    Index others = 0;
    for (Index j = 0; j < 10; ++j) others += groups[j] != groups[i] ? 1 : 0;
    EXPECT_EQ(neighbours.count[i], others);
    for (Index j = 0; j < others; ++j) EXPECT_NE(groups[neighbours.index[i * 10 + j]], groups[i]);
  }
}

TEST(LocalDimension, ASubsetIsWhatItsOwnMatrixGives) {
  constexpr Index n = 30;
  const RowMatrix<double> distances = random_distances(n, 4);
  const Neighbours neighbours = found_in(distances);
  std::vector<Index> members;
  auto member = std::make_unique<bool[]>(n);
  for (Index i = 0; i < n; ++i) {
    member[i] = i * 7 % 5 < 3;
    if (member[i]) members.push_back(i);
  }
  const auto m = static_cast<Index>(members.size());
  RowMatrix<double> dimension(m, m);
  for (Index i = 0; i < m; ++i) {
    for (Index j = 0; j < m; ++j) dimension(i, j) = distances(members[i], members[j]);
  }
  const Answer subset = answer(neighbours, {3, 8}, member.get());
  const Answer of_subset = answer(found_in(dimension), {3, 8});
  EXPECT_EQ(subset.value, of_subset.value);
  EXPECT_EQ(subset.used, of_subset.used);
  for (Index a = 0; a < 2; ++a) {
    for (Index i = 0; i < m; ++i) {
      EXPECT_EQ(subset.points[a * n + members[i]], of_subset.points[a * m + i]);
    }
  }
  std::vector<double> scratch;
  for (const double discard : {0.0, 0.2}) {
    EXPECT_EQ(two_nn(neighbours, member.get(), discard, scratch),
              two_nn(found_in(dimension), nullptr, discard, scratch));
  }
}

TEST(LocalDimension, EveryTypeIsReadExactly) {
  const RowMatrix<float> single = random_distances(12, 5).cast<float>();
  const RowMatrix<double> wide = single.cast<double>();
  EXPECT_EQ(found_in(single).log, found_in(wide).log);
  const RowMatrix<Eigen::half> half = wide.cast<Eigen::half>();
  EXPECT_EQ(found_in(half).log, found_in(RowMatrix<double>(half.cast<double>())).log);
  const RowMatrix<Eigen::bfloat16> brain = wide.cast<Eigen::bfloat16>();
  EXPECT_EQ(found_in(brain).log, found_in(RowMatrix<double>(brain.cast<double>())).log);
}

TEST(LocalDimension, OfFewerNeighboursThanAskedIsNone) {
  const bool member[] = {true, true, true, true};
  const Answer dimension = answer(found_in(line({0.0, 0.1, 0.25, 0.7})), {4}, member);
  EXPECT_EQ(dimension.used[0], 0);
  EXPECT_TRUE(std::isnan(dimension.value[0]));
}

TEST(TwoNn, IsTheMeanLogRatioAndItsFit) {
  const double e = std::exp(1.0);
  std::vector<double> scratch;
  EXPECT_NEAR(two_nn(found_in(line({0.0, 1.0, e})), nullptr, 0.0, scratch), 1.0, 1e-14);
  const RowMatrix<double> distances = random_distances(20, 6);
  const Neighbours neighbours = found_in(distances);
  std::vector<double> ratios;
  for (Index i = 0; i < 20; ++i) {
    ratios.push_back(neighbours.log[i * 20 + 1] - neighbours.log[i * 20]);
  }
  std::sort(ratios.begin(), ratios.end());
  double sum = 0.0, products = 0.0, squares = 0.0;
  for (Index i = 0; i < 20; ++i) {
    sum += ratios[i];
    if (i >= 15) continue;
    products += ratios[i] * -std::log(1.0 - double(i + 1) / 20.0);
    squares += ratios[i] * ratios[i];
  }
  EXPECT_NEAR(two_nn(neighbours, nullptr, 0.0, scratch), 19.0 / sum, 1e-12);
  EXPECT_NEAR(two_nn(neighbours, nullptr, 0.25, scratch), products / squares, 1e-12);
}

TEST(TwoNn, OfTwoRatiosOneLessIsCounted) {
  // Given distances of a chain: its inner points alone have two neighbours.
  RowMatrix<double> chain = RowMatrix<double>::Zero(4, 4);
  chain(0, 1) = chain(1, 0) = 1.0;
  chain(1, 2) = chain(2, 1) = 2.0;
  chain(2, 3) = chain(3, 2) = 6.0;
  std::vector<double> scratch;
  EXPECT_NEAR(two_nn(found_in(chain), nullptr, 0.0, scratch), 1.0 / std::log(6.0), 1e-15);
  // Of one ratio nothing is left.
  const RowMatrix<double> shorter = chain.topLeftCorner(3, 3);
  EXPECT_TRUE(std::isnan(two_nn(found_in(shorter), nullptr, 0.0, scratch)));
}

TEST(TwoNn, WithoutRatiosThereIsNone) {
  std::vector<double> scratch;
  for (const double discard : {0.0, 0.3}) {
    EXPECT_TRUE(std::isnan(two_nn(found_in(line({0.0, 1.0})), nullptr, discard, scratch)));
    RowMatrix<double> tied = RowMatrix<double>::Constant(5, 5, 2.0);
    tied.diagonal().setZero();
    EXPECT_TRUE(std::isnan(two_nn(found_in(tied), nullptr, discard, scratch)));
  }
}

}  // namespace
}  // namespace attnscope
