// SPDX-License-Identifier: MIT
#include "kernels/states/reference_influence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

// The states in panels, which `numbers` keeps.
StatePanels<double> panels_of(const RowMatrix<double>& states, std::vector<double>& numbers) {
  const Index keys = states.rows();
  const Index width = states.cols();
  numbers.resize(static_cast<std::size_t>(size_of_panels<double>(keys, width)));
  // in two parts, as workers put them
  const Index half = keys / 2;
  put_in_panels(states.data(), Index{0}, half, keys, width, numbers.data());
  put_in_panels(states.data() + half * width, half, keys, keys, width, numbers.data());
  return {numbers.data(), keys, width};
}

TEST(ReferenceInfluence, SplitsTheOutputOfEveryOtherQuery) {
  constexpr Index n = 21;
  constexpr Index d = 3;
  const RowMatrix<double> a = testing::random_attention(n, true, 8);
  const RowMatrix<double> states = RowMatrix<double>::Random(n, d);
  bool reference[n] = {};
  reference[0] = reference[4] = reference[20] = true;
  Support support;
  support.kind = Support::Kind::causal;
  std::vector<double> magnitude(n, -1.0);
  std::vector<double> directional(n, -1.0);
  std::vector<double> change(n, -1.0);
  InfluenceWorkspace workspace;
  std::vector<double> numbers;
  const StatePanels<double> panels = panels_of(states, numbers);
  for (Index begin = 0; begin < n; begin += 8) {
    reference_influence(view(a), support, panels, reference, 1, begin, std::min(n, begin + 8),
                        Influence{magnitude.data(), directional.data(), change.data()}, workspace);
  }
  for (Index i = 0; i < n; ++i) {
    if (reference[i]) {
      EXPECT_EQ(magnitude[i], -1.0);
      continue;
    }
    Eigen::RowVectorXd part = Eigen::RowVectorXd::Zero(d);
    Eigen::RowVectorXd rest = Eigen::RowVectorXd::Zero(d);
    for (Index j = 0; j <= i; ++j) (reference[j] ? part : rest) += a(i, j) * states.row(j);
    const Eigen::RowVectorXd all = part + rest;
    EXPECT_NEAR(magnitude[i], part.norm() / all.norm(), 1e-12);
    EXPECT_NEAR(directional[i], part.dot(all) / part.norm() / all.norm(), 1e-12);
    EXPECT_NEAR(change[i], 1.0 - all.dot(rest) / all.norm() / rest.norm(), 1e-12);
  }
}

TEST(ReferenceInfluence, EverySizeBesideAPanelOfTokensAndOfNumbers) {
  // Panels hold 6, 12 or 24 numbers of 192 tokens, four of them are read together.
  for (Index n : {1, 4, 5, 47, 193, 260}) {
    for (Index d : {1, 11, 12, 13, 49, 100}) {
      for (bool causal : {true, false}) {
        const RowMatrix<double> a = testing::random_attention(n, causal, unsigned(n + d));
        const RowMatrix<double> states = RowMatrix<double>::Random(n, d);
        std::vector<char> flags(static_cast<std::size_t>(n), 0);
        for (Index j = 0; j + 2 < n; j += d < 12 ? 1 : 3) flags[static_cast<std::size_t>(j)] = 1;
        const auto* reference = reinterpret_cast<const bool*>(flags.data());
        Support support;
        if (causal) support.kind = Support::Kind::causal;
        std::vector<double> magnitude(static_cast<std::size_t>(n));
        auto directional = magnitude;
        auto change = magnitude;
        InfluenceWorkspace workspace;
        std::vector<double> numbers;
        const StatePanels<double> panels = panels_of(states, numbers);
        for (Index begin = 0; begin < n; begin += 64) {
          reference_influence(
              view(a), support, panels, reference, 1, begin, std::min(n, begin + 64),
              Influence{magnitude.data(), directional.data(), change.data()}, workspace);
        }
        for (Index i = 0; i < n; ++i) {
          const auto at = static_cast<std::size_t>(i);
          if (reference[i]) continue;
          Eigen::RowVectorXd part = Eigen::RowVectorXd::Zero(d);
          Eigen::RowVectorXd rest = Eigen::RowVectorXd::Zero(d);
          for (Index j = 0; j <= (causal ? i : n - 1); ++j) {
            (reference[j] ? part : rest) += a(i, j) * states.row(j);
          }
          const Eigen::RowVectorXd all = part + rest;
          EXPECT_NEAR(magnitude[at], part.norm() / all.norm(), 1e-12 * (1.0 + magnitude[at]));
          if (part.norm() > 0.0) {
            EXPECT_NEAR(directional[at], part.dot(all) / part.norm() / all.norm(), 1e-12);
          } else {
            EXPECT_TRUE(std::isnan(directional[at]));
          }
          EXPECT_NEAR(change[at], 0.5 * (all.normalized() - rest.normalized()).squaredNorm(),
                      1e-12);
        }
      }
    }
  }
}

TEST(ReferenceInfluence, AMapShorterThanItsStatesReadsTheFirstOfThem) {
  constexpr Index n = 9;
  const RowMatrix<double> a = testing::random_attention(n, false, 5);
  const RowMatrix<double> states = RowMatrix<double>::Random(2 * n, 30);
  const RowMatrix<double> first = states.topRows(n);
  const bool reference[n] = {true};
  InfluenceWorkspace workspace;
  std::vector<double> of_all;
  std::vector<double> of_first;
  std::vector<double> expected(3 * n);
  std::vector<double> influence(3 * n);
  const auto measure = [&](const StatePanels<double>& panels, std::vector<double>& out) {
    reference_influence(view(a), Support{}, panels, reference, 1, 0, n,
                        Influence{out.data(), out.data() + n, out.data() + 2 * n}, workspace);
  };
  measure(panels_of(first, of_first), expected);
  measure(panels_of(states, of_all), influence);
  EXPECT_EQ(influence, expected);
}

TEST(ReferenceInfluence, WithoutReferenceNothingComesFromIt) {
  const RowMatrix<double> a = testing::random_attention(6, false, 9);
  const RowMatrix<double> states = RowMatrix<double>::Random(6, 2);
  const bool reference[6] = {};
  double magnitude[6];
  double directional[6];
  double change[6];
  InfluenceWorkspace workspace;
  std::vector<double> numbers;
  const StatePanels<double> panels = panels_of(states, numbers);
  reference_influence(view(a), Support{}, panels, reference, 1, 0, 6,
                      Influence{magnitude, directional, change}, workspace);
  for (Index i = 0; i < 6; ++i) {
    EXPECT_EQ(magnitude[i], 0.0);
    EXPECT_TRUE(std::isnan(directional[i]));
    EXPECT_NEAR(change[i], 0.0, 1e-30);
  }
}

}  // namespace
}  // namespace attnscope
