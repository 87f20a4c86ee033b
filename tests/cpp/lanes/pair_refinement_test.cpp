// SPDX-License-Identifier: MIT
// Eigenvectors of a simple graph's Laplacian that are refined with an inverse of the test's choice.
#include "graphs/pair_refinement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

namespace attnscope {
namespace {

constexpr Index kNodes = 40;

SimpleLaplacian path() {
  LevelTable level;
  level.resize(kNodes);
  std::vector<Index> nodes(kNodes);
  std::iota(nodes.begin(), nodes.end(), Index{0});
  std::vector<double> degree(kNodes, 2.0);
  degree.front() = degree.back() = 1.0;
  for (Index i = 0; i + 1 < kNodes; ++i) level.row(i)[i + 1] = level.row(i + 1)[i] = 1;
  SimpleLaplacian laplacian;
  laplacian.read({level, 0, nodes, degree});
  return laplacian;
}

// Eigenvalue k of the path, and entry i of its vector.
double value_of(Index k) {
  return 2.0 - 2.0 * std::cos(std::numbers::pi * static_cast<double>(k) / kNodes);
}
double entry_of(Index k, Index i) {
  return std::sqrt((k == 0 ? 1.0 : 2.0) / kNodes) *
         std::cos(std::numbers::pi * static_cast<double>(k) * (static_cast<double>(i) + 0.5) /
                  kNodes);
}

// Refines vectors 1 and 2, each of which has 1e-3 of every other one in it. inverse_of(k) is
// what is taken for 1 / (value_of(k) − σ).
struct Refined {
  bool done;
  double values[2];

  template <class Solve>
  Refined(double sigma, Solve&& inverse_of) {
    constexpr Index kPadded = 64;
    const SimpleLaplacian laplacian = path();
    AlignedBuffer basis, images, floats;
    PairRefinement refinement(laplacian, 1, 2, basis, images);
    for (Index i = 0; i < kNodes; ++i) refinement.locked_vector(0)[i] = entry_of(0, i);
    auto* const x = reinterpret_cast<float*>(floats.resize((3 + kCorrectionVectors) * kPadded));
    float* const memory = x + 3 * kPadded;
    std::fill(x, memory, 0.0f);
    for (Index k = 0; k < 3; ++k) {
      for (Index i = 0; i < kNodes; ++i) {
        double entry = entry_of(k + 1, i);
        for (Index other = 1; other < kNodes; ++other) entry += 1e-3 * entry_of(other, i);
        x[k * kPadded + i] = static_cast<float>(entry);
      }
    }
    BlockRound round;
    round.size = 3;
    round.pairs.values = Eigen::Vector3d(inverse_of(3), inverse_of(2), inverse_of(1));
    const auto solve = [&](float* y, Index count) {
      for (Index at = 0; at < count; ++at) {
        double image[kNodes] = {};
        for (Index k = 1; k < kNodes; ++k) {
          double part = 0.0;
          for (Index i = 0; i < kNodes; ++i) part += entry_of(k, i) * y[at * kPadded + i];
          for (Index i = 0; i < kNodes; ++i) image[i] += inverse_of(k) * part * entry_of(k, i);
        }
        std::copy(image, image + kNodes, y + at * kPadded);
      }
    };
    done = refinement.refine(sigma, {kPadded, round, x, 2}, x, memory, solve);
    for (Index k = 0; k < 2; ++k) values[k] = refinement.value(k);
  }
};

TEST(PairRefinement, AnInverseTakesBothValuesToTheirBound) {
  const Refined refined(0.0, [](Index k) { return 1.0 / value_of(k); });
  EXPECT_TRUE(refined.done);
  EXPECT_NEAR(refined.values[0], value_of(1), 1e-14);
  EXPECT_NEAR(refined.values[1], value_of(2), 1e-14);
}

TEST(PairRefinement, AShiftMayLieAboveTheFirstValueWhoseVectorIsLifted) {
  const double sigma = 0.9 * value_of(2), lift = 4.0 * (value_of(2) - value_of(1));
  const Refined refined(
      sigma, [&](Index k) { return 1.0 / (value_of(k) + (k == 1 ? lift : 0.0) - sigma); });
  EXPECT_TRUE(refined.done);
  EXPECT_NEAR(refined.values[0], value_of(1), 1e-14);
  EXPECT_NEAR(refined.values[1], value_of(2), 1e-14);
}

TEST(PairRefinement, CorrectionsThatGainNothingEndIt) {
  // The inverse of another matrix, whose corrections are hardly better than any direction.
  const Refined refined(0.0, [](Index k) { return 1.0 / value_of(1 + k * 7 % (kNodes - 1)); });
  EXPECT_FALSE(refined.done);
}

}  // namespace
}  // namespace attnscope
