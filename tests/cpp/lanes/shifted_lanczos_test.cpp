// SPDX-License-Identifier: MIT
#include "linalg/shifted_lanczos.h"

#include <gtest/gtest.h>

#include <random>

#include "eigen_oracles.h"

namespace attnscope {
namespace {

TEST(ShiftedLanczos, EigenvaluesOfTridiagonalMatricesEqualEigen) {
  std::mt19937 generator(11);
  std::uniform_real_distribution<double> uniform(0.1, 1.0);
  for (Index size = 1; size <= kMostLanczosSteps; ++size) {
    Eigen::VectorXd alpha(size), beta(std::max<Index>(size - 1, 1));
    for (double& x : beta) x = uniform(generator);
    // Diagonally dominant, so that all eigenvalues are positive.
    for (Index k = 0; k < size; ++k) {
      alpha[k] =
          (k > 0 ? beta[k - 1] : 0.0) + (k + 1 < size ? beta[k] : 0.0) + 0.01 * uniform(generator);
    }
    const double top = testing::tridiagonal_eigenvalues(alpha, beta.head(size - 1))[size - 1];
    EXPECT_NEAR(largest_eigenvalue(alpha.data(), beta.data(), size), top, 1e-14 * top) << size;
  }
}

}  // namespace
}  // namespace attnscope
