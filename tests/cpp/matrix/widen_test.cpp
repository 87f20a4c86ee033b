// SPDX-License-Identifier: MIT
#include "matrix/widen.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

TEST(Widen, ScalesByAPowerOfTwoWhateverRowAndSignTheLargestHas) {
  // Rows of any length beside a pair of vectors; the largest entry in each place.
  for (Index n : {1, 2, 7, 8, 9, 16, 17}) {
    for (Index place = 0; place < n * n; ++place) {
      for (double largest : {-3e200, 3e200, -3e-200}) {
        RowMatrix<double> a = RowMatrix<double>::Constant(n, n, std::abs(largest) * 1e-3);
        a.data()[place] = largest;
        RowMatrix<double> out(n, n);
        const double scale = widen(view(a), out.data(), n);
        int exponent = 0;
        EXPECT_EQ(std::frexp(scale, &exponent), 0.5);
        EXPECT_EQ(out, (a * scale).eval());
        const double scaled = out.cwiseAbs().maxCoeff();
        EXPECT_TRUE(scaled >= 0.5 && scaled < 1.0) << n << " " << place << " " << scaled;
      }
    }
  }
  const RowMatrix<double> plain = testing::random_attention(5, false, 1);
  RowMatrix<double> out(5, 5);
  EXPECT_EQ(widen(view(plain), out.data(), 5), 1.0);
  EXPECT_EQ(out, plain);
}

}  // namespace
}  // namespace attnscope
