// SPDX-License-Identifier: MIT
// Factors, reductions and products of one matrix in panels, and the eigenvalues of what Lanczos
// leaves.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "linalg/gram.h"
#include "linalg/lanczos/shifted_lanczos.h"
#include "linalg/panel_cholesky.h"
#include "linalg/panel_tridiagonal.h"
#include "matrices.h"
#include "simd/memory.h"

namespace attnscope {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

void fill_panels(const Matrix& a, double* panels) {
  const Index n = a.rows();
  std::fill(panels, panels + panel_offset(panels_of(n)), 0.0);
  for (Index i = 0; i < n; ++i) {
    for (Index j = i / kPanel * kPanel; j < n; ++j) {
      panels[panel_offset(j / kPanel) + i * kPanel + j % kPanel] = a(i, j);
    }
  }
}

// The tridiagonal form of `a`, as a matrix.
Matrix reduced(const Matrix& a, Index stride = 1) {
  const Index n = a.rows();
  AlignedBuffer buffer, scratch;
  double* panels = buffer.resize(panel_offset(panels_of(n)));
  fill_panels(a, panels);
  const auto size = static_cast<std::size_t>(n * stride);
  std::vector<double> diagonal(size, -7.0), beside(size, -7.0);
  panel_tridiagonalize(panels, n, diagonal.data(), beside.data(), stride, scratch);
  Matrix t = Matrix::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    t(i, i) = diagonal[static_cast<std::size_t>(i * stride)];
    if (i + 1 < n) t(i, i + 1) = t(i + 1, i) = beside[static_cast<std::size_t>(i * stride)];
  }
  EXPECT_EQ(beside[size - static_cast<std::size_t>(stride)], -7.0);
  return t;
}

Matrix symmetric(Index n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Matrix a(n, n);
  for (double& x : a.reshaped()) x = normal(generator);
  return a + a.transpose();
}

// tr A, tr A², tr A³ and tr A⁴ tell similar matrices from others without an eigenvalue solver.
TEST(PanelTridiagonal, KeepsTheTracesOfPowers) {
  for (const Index n :
       {1, 2, 3, 4, 5, 11, 12, 13, 23, 24, 25, 26, 36, 37, 48, 50, 71, 72, 73, 100, 145}) {
    const Matrix a = symmetric(n, static_cast<unsigned>(n));
    const Matrix t = reduced(a, n % 3 + 1);
    const double size = a.norm();
    const Matrix a2 = a * a, t2 = t * t;
    EXPECT_NEAR(t.trace(), a.trace(), 1e-14 * size * std::sqrt(double(n))) << n;
    EXPECT_NEAR(t2.trace(), a2.trace(), 1e-14 * size * size) << n;
    EXPECT_NEAR((t2 * t).trace(), (a2 * a).trace(), 1e-13 * size * size * size) << n;
    EXPECT_NEAR((t2 * t2).trace(), (a2 * a2).trace(), 1e-13 * a2.squaredNorm()) << n;
  }
}

TEST(PanelTridiagonal, APathsLaplacianHasItsEigenvalues) {
  for (const Index n : {3, 12, 13, 40, 97}) {
    // In an order that leaves nothing of the path near the diagonal.
    Index step = n / 3 + 1;
    while (std::gcd(step, n) != 1) ++step;
    Matrix a = Matrix::Zero(n, n);
    for (Index k = 0; k + 1 < n; ++k) {
      const Index i = k * step % n, j = (k + 1) * step % n;
      a(i, j) = a(j, i) = -1.0;
      a(i, i) += 1.0;
      a(j, j) += 1.0;
    }
    const Matrix t = reduced(a);
    const Eigen::VectorXd values = testing::eigenvalues(t);
    for (Index k = 0; k < n; ++k) {
      EXPECT_NEAR(values[k], 2.0 - 2.0 * std::cos(std::numbers::pi * double(k) / double(n)), 1e-13)
          << n;
    }
  }
}

TEST(PanelTridiagonal, WhatIsTridiagonalOrDiagonalStays) {
  const Index n = 30;
  Matrix a = Matrix::Zero(n, n);
  for (Index i = 0; i < n; ++i) a(i, i) = 0.5 + double(i);
  EXPECT_EQ(reduced(a), a);
  for (Index i = 0; i + 1 < n; ++i) a(i, i + 1) = a(i + 1, i) = i % 4 == 0 ? 0.0 : -2.0 + double(i);
  EXPECT_EQ(reduced(a), a);
  EXPECT_EQ(reduced(Matrix::Zero(n, n)), Matrix::Zero(n, n));
}

// Rank one: one eigenvalue and zeros, whatever the reflections meet.
TEST(PanelTridiagonal, RankOne) {
  const Index n = 61;
  Eigen::VectorXd v = Eigen::VectorXd::LinSpaced(n, -1.0, 2.0);
  const Eigen::VectorXd values = testing::eigenvalues(reduced(v * v.transpose()));
  EXPECT_NEAR(values[n - 1], v.squaredNorm(), 1e-13 * v.squaredNorm());
  EXPECT_LT(values.head(n - 1).cwiseAbs().maxCoeff(), 1e-13 * v.squaredNorm());
}

TEST(PanelGram, EqualsEigenWhetherCausalOrNot) {
  for (const Index n : {1, 2, 5, 11, 12, 13, 24, 47, 191, 192, 193, 200, 390}) {
    Matrix x = symmetric(n, static_cast<unsigned>(n) + 7);
    for (const bool causal : {false, true}) {
      if (causal) x = Matrix(x.triangularView<Eigen::Lower>());
      AlignedBuffer buffer, expected, scratch;
      const Index size = panel_offset(panels_of(n));
      double* gram = buffer.resize(size);
      std::fill(gram, gram + size, 3e100);
      panel_gram(x.data(), n, n, causal, gram, scratch);
      double* panels = expected.resize(size);
      fill_panels(x * x.transpose(), panels);
      double worst = 0.0;
      for (Index k = 0; k < size; ++k) worst = std::max(worst, std::abs(gram[k] - panels[k]));
      EXPECT_LT(worst, 1e-14 * x.squaredNorm()) << n << causal;
    }
  }
}

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
