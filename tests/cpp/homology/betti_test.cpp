// SPDX-License-Identifier: MIT
#include "kernels/homology/betti.h"

#include <gtest/gtest.h>

#include "kernels/homology/persistence.h"
#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

std::vector<std::int64_t> betti(const RowMatrix<double>& a, const std::vector<double>& thresholds,
                                Symmetrize symmetrize = Symmetrize::max) {
  BettiWorkspace workspace;
  std::vector<std::int64_t> out(2 * thresholds.size(), -7);
  betti_numbers(view(a), symmetrize, thresholds.data(), static_cast<Index>(thresholds.size()),
                out.data(), workspace);
  return out;
}

using Numbers = std::vector<std::int64_t>;

TEST(Betti, StarCompleteCyclePath) {
  EXPECT_EQ(betti(testing::star(9, 0.5), {0.25, 0.75}), (Numbers{1, 0, 9, 0}));
  EXPECT_EQ(betti(testing::complete(9, 0.5), {0.25, 0.75}), (Numbers{1, 0, 9, 0}));
  EXPECT_EQ(betti(testing::path(9, 0.5), {0.25, 0.75}), (Numbers{1, 0, 9, 0}));
  for (Index n : {3, 4, 5, 64, 65, 200}) {
    EXPECT_EQ(betti(testing::cycle(n, 0.5), {0.25}), (Numbers{1, n >= 4 ? 1 : 0})) << n;
  }
}

TEST(Betti, OneAndTwoTokens) {
  EXPECT_EQ(betti(RowMatrix<double>::Ones(1, 1), {0.5}), (Numbers{1, 0}));
  EXPECT_EQ(betti(testing::complete(2, 0.5), {0.5, 0.6}), (Numbers{1, 0, 2, 0}));
}

TEST(Betti, EqualWeightsAreInTheGraphAndOrderIsTheCallers) {
  RowMatrix<double> a = testing::cycle(6, 0.3);
  a(0, 3) = 0.2;
  EXPECT_EQ(betti(a, {0.2, 0.3, 0.25, 0.3, 0.9}), (Numbers{1, 2, 1, 1, 1, 1, 1, 1, 6, 0}));
}

TEST(Betti, ThresholdOfOneGivesTheEmptyGraph) {
  EXPECT_EQ(betti(testing::complete(4, 1.0), {1.0, 4.0, 0.999}), (Numbers{4, 0, 4, 0, 1, 0}));
}

TEST(Betti, EqualsBarsAlive) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    for (Symmetrize symmetrize : {Symmetrize::max, Symmetrize::mean, Symmetrize::min}) {
      const RowMatrix<double> a =
          testing::random_attention(40 + seed * 7, seed % 2 == 0, seed, 2.0);
      const std::vector<double> thresholds = {0.001, 0.01, 0.03, 0.1, 0.2, 0.5};
      PersistenceWorkspace workspace;
      PersistenceOptions options;
      options.symmetrize = symmetrize;
      std::vector<Bar> bars;
      persistence(view(a), options, workspace, bars);
      Numbers alive(2 * thresholds.size(), 0);
      for (std::size_t k = 0; k < thresholds.size(); ++k) {
        const double scale = 1.0 - thresholds[k];
        for (const Bar& bar : bars) {
          if (bar.birth <= scale && scale < bar.death) ++alive[2 * k + bar.dimension];
        }
      }
      EXPECT_EQ(betti(a, thresholds, symmetrize), alive) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace attnscope
