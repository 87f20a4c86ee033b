// SPDX-License-Identifier: MIT
#include "kernels/clouds/fragmentation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::complete;
using testing::RowMatrix;
using testing::view;

template <class Scalar>
double value_of(const RowMatrix<Scalar>& distances, const bool* member = nullptr) {
  FragmentationWorkspace workspace;
  return fragmentation(view(distances), member, workspace);
}

RowMatrix<double> line(const std::vector<double>& at) {
  const auto n = static_cast<Index>(at.size());
  RowMatrix<double> distances(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) distances(i, j) = std::abs(at[i] - at[j]);
  }
  return distances;
}

TEST(Fragmentation, IsOneWhereAllAreEquallyFar) {
  for (const double distance : {1e-9, 0.3, std::sqrt(2.0), 1e9}) {
    for (const Index n : {2, 3, 8, 31, 70}) EXPECT_EQ(value_of(complete(n, distance)), 1.0);
  }
}

TEST(Fragmentation, IsTheMeanMergeOverTheMedian) {
  // Merges at 1, 1 and 9; distances 1, 1, 9, 10, 10, 11.
  EXPECT_NEAR(value_of(line({0.0, 1.0, 10.0, 11.0})), 11.0 / 3.0 / 9.5, 1e-15);
  // Merges at 2 and 3; distances 2, 3, 5.
  EXPECT_NEAR(value_of(line({0.0, 5.0, 2.0})), 2.5 / 3.0, 1e-15);
}

TEST(Fragmentation, EqualPointsMergeWithoutABar) {
  // Distances 0, 0, 0, 1, 1, 1 and one bar of length 1.
  EXPECT_EQ(value_of(line({1.0, 1.0, 1.0, 2.0})), 2.0);
  EXPECT_TRUE(std::isnan(value_of(line({1.0, 1.0, 1.0, 1.0, 2.0}))));
  EXPECT_TRUE(std::isnan(value_of(line({1.0, 1.0}))));
  EXPECT_TRUE(std::isnan(value_of(line({1.0}))));
}

TEST(Fragmentation, ASubsetIsWhatItsOwnMatrixGives) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<double> uniform;
  std::vector<double> at(40);
  for (double& x : at) x = uniform(generator);
  const RowMatrix<double> distances = line(at);
  auto member = std::make_unique<bool[]>(40);
  std::vector<double> chosen;
  for (Index i = 0; i < 40; ++i) {
    member[i] = i % 3 != 1;
    if (member[i]) chosen.push_back(at[i]);
  }
  EXPECT_EQ(value_of(distances, member.get()), value_of(line(chosen)));
  auto nobody = std::make_unique<bool[]>(40);
  EXPECT_TRUE(std::isnan(value_of(distances, nobody.get())));
}

// Pairs from near to far, each joining the labels of its ends where they differ.
double by_sorted_pairs(const RowMatrix<double>& distances) {
  struct Pair {
    double distance;
    Index i, j;
  };
  const Index n = distances.rows();
  std::vector<Pair> pairs;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) pairs.push_back({distances(i, j), i, j});
  }
  std::sort(pairs.begin(), pairs.end(),
            [](const Pair& a, const Pair& b) { return a.distance < b.distance; });
  std::vector<Index> label(static_cast<std::size_t>(n));
  std::iota(label.begin(), label.end(), Index{0});
  double sum = 0.0;
  for (const Pair& pair : pairs) {
    const Index from = label[pair.i], to = label[pair.j];
    if (from == to) continue;
    sum += pair.distance;
    std::replace(label.begin(), label.end(), from, to);
  }
  const std::size_t half = pairs.size() / 2;
  const double median = pairs.size() % 2 == 1
                            ? pairs[half].distance
                            : 0.5 * (pairs[half - 1].distance + pairs[half].distance);
  return sum / static_cast<double>(n - 1) / median;
}

TEST(Fragmentation, IsThatOfSortedPairsInOneWorkspace) {
  std::mt19937 generator(2);
  std::uniform_real_distribution<double> uniform;
  FragmentationWorkspace workspace;
  for (const Index n : {40, 3, 5, 12, 33}) {
    RowMatrix<double> distances = RowMatrix<double>::Zero(n, n);
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < i; ++j) distances(i, j) = distances(j, i) = uniform(generator);
    }
    EXPECT_NEAR(fragmentation(view(distances), nullptr, workspace), by_sorted_pairs(distances),
                1e-14)
        << n;
  }
}

TEST(Fragmentation, EveryTypeIsReadExactly) {
  const RowMatrix<double> distances = line({0.0, 0.5, 2.0, 3.25, 8.0});
  const double exact = value_of(distances);
  EXPECT_EQ(value_of(RowMatrix<float>(distances.cast<float>())), exact);
  EXPECT_EQ(value_of(RowMatrix<Eigen::half>(distances.cast<Eigen::half>())), exact);
  EXPECT_EQ(value_of(RowMatrix<Eigen::bfloat16>(distances.cast<Eigen::bfloat16>())), exact);
}

TEST(CloudComponents, GrowWithTheScale) {
  const RowMatrix<double> distances = line({0.0, 1.0, 1.5, 10.0, 11.0, 30.0, 30.0});
  const double scales[] = {-1.0, 0.0, 0.5, 1.0, 8.5, 19.0, 100.0};
  Components counts[7];
  FragmentationWorkspace workspace;
  cloud_components(view(distances), scales, 7, 3, counts, workspace);
  const std::int64_t components[] = {7, 6, 5, 3, 2, 1, 1};
  const std::int64_t clusters[] = {0, 0, 0, 1, 1, 1, 1};
  const std::int64_t singletons[] = {7, 5, 3, 0, 0, 0, 0};
  const double largest[] = {1, 2, 2, 3, 5, 7, 7};
  for (int s = 0; s < 7; ++s) {
    EXPECT_EQ(counts[s].components, components[s]) << s;
    EXPECT_EQ(counts[s].clusters, clusters[s]) << s;
    EXPECT_EQ(counts[s].singletons, singletons[s]) << s;
    EXPECT_EQ(counts[s].largest, largest[s] / 7.0) << s;
  }
  // Nothing is written behind the last scale.
  counts[6].components = -1;
  cloud_components(view(distances), scales, 6, 3, counts, workspace);
  EXPECT_EQ(counts[6].components, -1);
  // A cluster may be a single point.
  cloud_components(view(distances), scales, 4, 1, counts, workspace);
  for (int s = 0; s < 4; ++s) EXPECT_EQ(counts[s].clusters, components[s]);
}

TEST(CloudComponents, OfOnePoint) {
  const double scales[] = {0.0};
  Components counts[1];
  FragmentationWorkspace workspace;
  cloud_components(view(line({3.0})), scales, 1, 2, counts, workspace);
  EXPECT_EQ(counts[0].components, 1);
  EXPECT_EQ(counts[0].clusters, 0);
  EXPECT_EQ(counts[0].singletons, 1);
  EXPECT_EQ(counts[0].largest, 1.0);
}

}  // namespace
}  // namespace attnscope
