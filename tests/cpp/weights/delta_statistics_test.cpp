// SPDX-License-Identifier: MIT
#include "kernels/weights/delta_statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

template <class Scalar>
MatrixView<Scalar> view_of(const RowMatrix<Scalar>& matrix) {
  return MatrixView<Scalar>(matrix.data(), matrix.rows(), matrix.cols(),
                            Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(matrix.cols(), 1));
}

template <class Scalar>
RowMatrix<Scalar> random_weights(Index m, Index n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, 0.02);
  RowMatrix<Scalar> weights(m, n);
  for (Index k = 0; k < m * n; ++k)
    weights.data()[k] = static_cast<Scalar>(float(normal(generator)));
  return weights;
}

// The next number of the type behind |w|, less |w|: the step's definition.
double step_at(double w, int bits, int lowest) {
  const double magnitude = std::abs(w);
  const int exponent = magnitude == 0.0 ? lowest : std::max(lowest, std::ilogb(magnitude));
  return std::ldexp(1.0, exponent - bits);
}

// The sums entry by entry in long double.
template <class Before, class After>
void expect_textbook(const RowMatrix<Before>& before, const RowMatrix<After>& after,
                     const DeltaSums& sums, int bits, int lowest) {
  using Wide = Difference<Before, After>;
  long double energy = 0, before_energy = 0, product = 0, before_steps = 0, after_steps = 0;
  double unchanged = 0, largest = 0;
  for (Index k = 0; k < before.size(); ++k) {
    const Wide a = static_cast<Wide>(before.data()[k]);
    const Wide b = static_cast<Wide>(after.data()[k]);
    const Wide d = b - a;
    energy += static_cast<long double>(d) * d;
    before_energy += static_cast<long double>(a) * a;
    product += static_cast<long double>(d) * a;
    before_steps += std::pow(step_at(double(a), bits, lowest), 2);
    after_steps += std::pow(step_at(double(b), bits, lowest), 2);
    unchanged += a == b ? 1 : 0;
    largest = std::max(largest, std::abs(double(d)));
  }
  EXPECT_TRUE(sums.finite);
  EXPECT_NEAR(sums.energy, double(energy), 1e-13 * double(energy));
  EXPECT_NEAR(sums.before_energy, double(before_energy), 1e-13 * double(before_energy));
  EXPECT_NEAR(sums.product, double(product), 1e-13 * double(before_energy + energy));
  EXPECT_NEAR(sums.before_steps, double(before_steps), 1e-13 * double(before_steps));
  EXPECT_NEAR(sums.after_steps, double(after_steps), 1e-13 * double(after_steps));
  EXPECT_EQ(sums.unchanged, unchanged);
  EXPECT_EQ(sums.largest, largest);
}

template <class Before, class After>
void check(Index m, Index n, int bits, int lowest) {
  const RowMatrix<Before> before = random_weights<Before>(m, n, unsigned(m + n));
  RowMatrix<After> after = random_weights<After>(m, n, unsigned(m * n + 1));
  for (Index k = 0; k < m * n; k += 3)
    after.data()[k] = static_cast<After>(float(before.data()[k]));
  RowScratch scratch;
  using Wide = Difference<Before, After>;
  // A row more than the changes fill, which stays as it is.
  RowMatrix<Wide> delta = RowMatrix<Wide>::Constant(m + 1, n, Wide(7));
  const DeltaSums sums = delta_sums(view_of(before), view_of(after), delta.data(), n, scratch);
  expect_textbook(before, after, sums, bits, lowest);
  for (Index k = 0; k < m * n; ++k) {
    EXPECT_EQ(delta.data()[k],
              static_cast<Wide>(after.data()[k]) - static_cast<Wide>(before.data()[k]));
  }
  for (Index k = m * n; k < (m + 1) * n; ++k) EXPECT_EQ(delta.data()[k], Wide(7));
  const DeltaSums without_delta =
      delta_sums(view_of(before), view_of(after), static_cast<Wide*>(nullptr), n, scratch);
  EXPECT_EQ(without_delta.energy, sums.energy);
  EXPECT_EQ(without_delta.after_steps, sums.after_steps);
  EXPECT_EQ(without_delta.unchanged, sums.unchanged);
}

TEST(DeltaStatistics, EqualsTheTextbookSumsInEveryPairOfTypes) {
  for (const auto& [m, n] : {std::pair<Index, Index>{1, 1},
                             {3, 5},
                             {2, 1023},
                             {2, 1024},
                             {3, 1025},
                             {33, 65},
                             {70, 31}}) {
    check<float, float>(m, n, 23, -126);
    check<double, double>(m, n, 52, -1022);
    check<Eigen::half, Eigen::half>(m, n, 10, -14);
    check<Eigen::bfloat16, Eigen::bfloat16>(m, n, 7, -126);
    check<Eigen::bfloat16, float>(m, n, 7, -126);
    check<float, Eigen::bfloat16>(m, n, 7, -126);
    check<Eigen::half, Eigen::bfloat16>(m, n, 7, -126);
    check<double, Eigen::half>(m, n, 10, -14);
    check<float, double>(m, n, 23, -126);
  }
}

TEST(DeltaStatistics, StridesDoNotMatter) {
  constexpr Index m = 37, n = 71;
  const RowMatrix<float> before = random_weights<float>(m, n, 1);
  const RowMatrix<float> after = random_weights<float>(m, n, 2);
  const Eigen::MatrixXf turned = before;  // columns contiguous
  RowScratch scratch;
  RowMatrix<float> delta(m, n);
  const MatrixView<float> view(turned.data(), m, n,
                               Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>(1, m));
  const DeltaSums sums = delta_sums(view, view_of(after), delta.data(), n, scratch);
  expect_textbook(before, after, sums, 23, -126);
  EXPECT_EQ(delta, after - before);
}

TEST(DeltaStatistics, StepsAreThoseOfNextafterAndOfTheSmallestNormalNumberBelowIt) {
  RowScratch scratch;
  for (const float w : {1.0f, -1.0f, 1.5f, 3.0f, 1e-3f, 1e-38f, 1e-44f, 0.0f}) {
    const RowMatrix<float> first = RowMatrix<float>::Constant(1, 1, w);
    const DeltaSums sums =
        delta_sums(view_of(first), view_of(first), static_cast<float*>(nullptr), 1, scratch);
    const double step = double(std::nextafter(std::abs(w), INFINITY)) - double(std::abs(w));
    EXPECT_EQ(std::sqrt(sums.before_steps), step) << w;
    EXPECT_EQ(sums.after_steps, sums.before_steps);
    EXPECT_EQ(sums.unchanged, 1.0);
    EXPECT_EQ(sums.energy, 0.0);
  }
}

TEST(DeltaStatistics, EntriesThatAreNoNumbersAreReported) {
  RowScratch scratch;
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const Index at : {0, 7, 8, 16}) {
      for (const bool in_both : {false, true}) {
        RowMatrix<float> first = RowMatrix<float>::Ones(1, 17), other = first;
        first(0, at) = bad;
        if (in_both) other(0, at) = bad;
        EXPECT_FALSE(
            delta_sums(view_of(first), view_of(other), static_cast<float*>(nullptr), 17, scratch)
                .finite);
        EXPECT_FALSE(
            delta_sums(view_of(other), view_of(first), static_cast<float*>(nullptr), 17, scratch)
                .finite);
      }
    }
  }
}

TEST(DeltaStatistics, PartsAddUp) {
  const RowMatrix<double> before = random_weights<double>(9, 4, 1);
  RowMatrix<double> after = random_weights<double>(9, 4, 2);
  after.row(2) = before.row(2);
  after(7, 1) = before(7, 1);
  RowScratch scratch;
  DeltaSums sums;
  for (const auto& [begin, rows] : {std::pair<Index, Index>{0, 4}, {4, 5}}) {
    const RowMatrix<double> a = before.middleRows(begin, rows), b = after.middleRows(begin, rows);
    sums.add(delta_sums(view_of(a), view_of(b), static_cast<double*>(nullptr), 4, scratch));
  }
  expect_textbook(before, after, sums, 52, -1022);
  sums.add(DeltaSums{.largest = 5.0, .finite = false});
  EXPECT_EQ(sums.largest, 5.0);
  EXPECT_FALSE(sums.finite);
}

}  // namespace
}  // namespace attnscope
