// SPDX-License-Identifier: MIT
#include "kernels/base/strip_cholesky.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/base/aligned_buffer.h"

namespace attnscope {
namespace {

TEST(StripCholesky, RefusesWhatIsNotPositiveDefinite) {
  AlignedBuffer matrix, inverses;
  for (const double pivot : {1.0, 0.0, -0.5, std::nan("")}) {
    for (const Index at : {Index{0}, Index{5}, kStrip - 1}) {
      double* a = matrix.resize(strip_offset(1));
      std::fill(a, a + strip_offset(1), 0.0);
      for (Index k = 0; k < kStrip; ++k) a[strip_entry(k, k)] = k == at ? pivot : 2.0;
      EXPECT_EQ(strip_factorize(a, 1, inverses.resize(strip_inverses(kStrip))), pivot == 1.0);
    }
  }
}

}  // namespace
}  // namespace attnscope
