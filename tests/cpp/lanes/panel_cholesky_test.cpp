// SPDX-License-Identifier: MIT
#include "linalg/panel_cholesky.h"

#include <gtest/gtest.h>

#include <cmath>

#include "simd/aligned_buffer.h"

namespace attnscope {
namespace {

TEST(PanelCholesky, RefusesWhatIsNotPositiveDefinite) {
  AlignedBuffer matrix, inverses;
  for (const double pivot : {1.0, 0.0, -0.5, std::nan("")}) {
    for (const Index at : {Index{0}, Index{5}, kPanel - 1}) {
      double* a = matrix.resize(panel_offset(1));
      std::fill(a, a + panel_offset(1), 0.0);
      for (Index k = 0; k < kPanel; ++k) a[panel_entry(k, k)] = k == at ? pivot : 2.0;
      EXPECT_EQ(panel_factorize(a, 1, inverses.resize(panel_inverses(kPanel))), pivot == 1.0);
    }
  }
}

}  // namespace
}  // namespace attnscope
