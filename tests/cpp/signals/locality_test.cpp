// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <gtest/gtest.h>

#include <cmath>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

TEST(Locality, StarsIdentitiesAndUniformMaps) {
  RowScratch scratch;
  const Index n = 20;
  Support causal;
  causal.kind = Support::Kind::causal;
  RowMatrix<double> star = RowMatrix<double>::Zero(n, n);
  star.col(0).setOnes();
  EXPECT_DOUBLE_EQ(local_global_ratio(view(star), causal, 8, false, scratch), 9.0 / 11.0);
  EXPECT_TRUE(std::isnan(local_global_ratio(view(star), causal, 8, true, scratch)));
  const RowMatrix<double> identity = RowMatrix<double>::Identity(n, n);
  EXPECT_TRUE(std::isinf(local_global_ratio(view(identity), causal, 0, false, scratch)));
  const RowMatrix<double> uniform = testing::uniform_causal(n);
  double far = 0.0;
  for (Index i = 3; i < n; ++i) far += double(i - 2) / double(i + 1);
  EXPECT_NEAR(local_global_ratio(view(uniform), causal, 2, false, scratch), (double(n) - far) / far,
              1e-12);
}

TEST(Locality, AWindowBeyondTheMapHoldsEverything) {
  RowScratch scratch;
  const RowMatrix<double> a = testing::random_attention(9, false, 1);
  EXPECT_TRUE(std::isinf(local_global_ratio(view(a), Support{}, 9, false, scratch)));
  EXPECT_TRUE(std::isinf(local_global_ratio(view(a), Support{}, 1000, true, scratch)));
}

}  // namespace
}  // namespace attnscope
