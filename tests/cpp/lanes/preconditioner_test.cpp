// SPDX-License-Identifier: MIT
// float32 factors, and what float64 steps make of them, against Eigen's float64 solvers.
#include <gtest/gtest.h>

#include <Eigen/Dense>
#include <cmath>
#include <random>

#include "linalg/panel_tridiagonal.h"
#include "linalg/refinement/davidson.h"
#include "linalg/refinement/float_preconditioner.h"
#include "linalg/refinement/rayleigh_descent.h"

namespace attnscope {
namespace {

using Matrix = Eigen::MatrixXd;

Matrix positive(Index n, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Matrix a(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) a(i, j) = normal(generator);
  }
  return a * a.transpose() / static_cast<double>(n) + Matrix::Identity(n, n);
}

float* floats(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<float*>(buffer.resize((size + 1) / 2));
}

template <class Number>
void fill(const Matrix& a, Number* panels) {
  const Index n = a.rows();
  const Index count = panels_of<Number>(n);
  std::fill(panels, panels + panel_offset<Number>(count), Number{0});
  for (Index i = 0; i < count * PanelShape<Number>::kWidth; ++i) {
    for (Index k = 0; k < std::min(i, n); ++k)
      panels[panel_entry<Number>(k, i)] = i < n ? static_cast<Number>(a(k, i)) : Number{0};
    panels[panel_entry<Number>(i, i)] = i < n ? static_cast<Number>(a(i, i)) : Number{1};
  }
}

template <class Number>
void solves(double tolerance) {
  for (const Index n : {1, 2, 7, 23, 24, 25, 32, 33, 47, 64, 65, 96, 130}) {
    const Matrix a = positive(n, static_cast<unsigned>(n));
    const Index count = panels_of<Number>(n);
    AlignedBuffer matrix, inverse, vector;
    auto* panels = reinterpret_cast<Number*>(matrix.resize(panel_offset<Number>(count)));
    auto* inverses = reinterpret_cast<Number*>(inverse.resize(panel_inverses<Number>(n)));
    const Index padded = count * PanelShape<Number>::kWidth;
    auto* x = reinterpret_cast<Number*>(vector.resize(3 * padded));
    fill(a, panels);
    ASSERT_TRUE(panel_factorize(panels, count, inverses));
    const Eigen::VectorXd b = Eigen::VectorXd::LinSpaced(n, -1.0, 2.0);
    std::fill(x, x + 3 * padded, Number{0});
    for (Index i = 0; i < n; ++i) x[i] = x[padded + i] = static_cast<Number>(b[i]);
    for (Index i = 0; i < n; ++i) x[2 * padded + i] = static_cast<Number>(b[n - 1 - i]);
    panel_solve<Number>(panels, count, inverses, x);
    panel_solve<2, Number>(panels, count, inverses, {x + 2 * padded, x + padded});
    const Eigen::VectorXd expected = a.llt().solve(b);
    // A vector gives the same bits beside another.
    for (Index i = 0; i < n; ++i) EXPECT_EQ(x[padded + i], x[i]) << n;
    for (Index i = 0; i < n; ++i) EXPECT_NEAR(x[i], expected[i], tolerance * expected.norm()) << n;
    // With one eigenvalue below 0 there is no factor.
    fill(Matrix(a - 2.0 * a(n - 1, n - 1) * Matrix::Identity(n, n)), panels);
    EXPECT_FALSE(panel_factorize(panels, count, inverses)) << n;
  }
}

TEST(PanelCholesky, SolvesInFloat64) { solves<double>(1e-13); }
TEST(PanelCholesky, SolvesInFloat32) { solves<float>(1e-5); }

template <class Number>
void multiplies(double tolerance) {
  constexpr Index kWidth = PanelShape<Number>::kWidth;
  for (const Index n : {1, 2, 23, 24, 25, 32, 33, 65, 130}) {
    const Matrix a = positive(n, static_cast<unsigned>(n));
    const Index count = panels_of<Number>(n);
    AlignedBuffer matrix, vectors;
    auto* panels = reinterpret_cast<Number*>(matrix.resize(panel_offset<Number>(count)));
    auto* x = reinterpret_cast<Number*>(vectors.resize(2 * count * kWidth));
    fill(a, panels);
    for (Index s = 0; s < n; s += kWidth) {  // the lower triangles of the diagonal blocks
      for (Index i = s; i < std::min(n, s + kWidth); ++i) {
        for (Index j = s; j < i; ++j)
          panels[panel_entry<Number>(s, s) + (i - s) * kWidth + j - s] =
              static_cast<Number>(a(i, j));
      }
    }
    const Eigen::VectorXd right = Eigen::VectorXd::LinSpaced(n, -1.0, 2.0);
    std::fill(x, x + count * kWidth, Number{0});
    for (Index i = 0; i < n; ++i) x[i] = static_cast<Number>(right[i]);
    Number* product = x + count * kWidth;
    panel_product<Number>(panels, count, x, product);
    const Eigen::VectorXd expected = a * right;
    for (Index i = 0; i < n; ++i)
      EXPECT_NEAR(product[i], expected[i], tolerance * expected.norm()) << n;
  }
}

TEST(Panels, ProductsInFloat64) { multiplies<double>(1e-14); }
TEST(Panels, ProductsInFloat32) { multiplies<float>(1e-5); }

TEST(Panels, JoinedSumsAndTurnedTiles) {
  FloatLanes rows[kFloatsInPack];
  for (Index r = 0; r < kFloatsInPack; ++r) {
    for (Index k = 0; k < kFloatsInPack; ++k) rows[r][k] = static_cast<float>(100 * r + k);
  }
  const FloatLanes sums = row_sums(rows);
  for (Index r = 0; r < kFloatsInPack; ++r) {
    const auto lanes = static_cast<float>(kFloatsInPack);
    EXPECT_EQ(sums[r], lanes * static_cast<float>(100 * r) + lanes * (lanes - 1.0f) / 2.0f);
  }
  Lanes tile[kPackWidth];
  for (Index r = 0; r < kPackWidth; ++r) {
    for (Index k = 0; k < kPackWidth; ++k) tile[r][k] = static_cast<double>(10 * r + k);
  }
  transpose_lanes(tile);
  for (Index r = 0; r < kPackWidth; ++r) {
    for (Index k = 0; k < kPackWidth; ++k) EXPECT_EQ(tile[r][k], static_cast<double>(10 * k + r));
  }
}

TEST(SmallMatrix, SmallestEigenvalueEqualsEigen) {
  std::mt19937 generator(5);
  std::normal_distribution<double> normal;
  for (Index size = 1; size <= kMostDavidsonSteps; ++size) {
    SmallMatrix small;
    Matrix dense = Matrix::Zero(size, size);
    for (Index i = 0; i < size; ++i) {
      for (Index j = 0; j <= i; ++j) {
        const double entry = i == j ? 1.0 + static_cast<double>(i) : 1e-3 * normal(generator);
        small.entry[i][j] = dense(i, j) = dense(j, i) = entry;
      }
    }
    double vector[kMostDavidsonSteps];
    const double value = small.smallest(size, vector);
    EXPECT_NEAR(value, Eigen::SelfAdjointEigenSolver<Matrix>(dense).eigenvalues()[0],
                1e-15 * static_cast<double>(size));
    const Eigen::Map<Eigen::VectorXd> y(vector, size);
    EXPECT_LT((dense * y - value * y).norm(), 1e-13);
    EXPECT_NEAR(y.norm(), 1.0, 1e-14);
  }
  SmallMatrix saddle;
  saddle.entry[0][0] = 1.0;
  saddle.entry[1][0] = 0.1;
  saddle.entry[1][1] = 0.5;  // not the larger one
  double vector[2];
  EXPECT_TRUE(std::isnan(saddle.smallest(2, vector)));
}

// The Laplacian of a graph of random weights with a hub, whose null vector is constant.
Matrix laplacian_with_hub(Index n) {
  std::mt19937 generator(11);
  std::exponential_distribution<double> weight(2.0);
  Matrix w = Matrix::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) {
      const double apart = static_cast<double>(i - j);
      w(i, j) = w(j, i) = j == 0 ? 20.0 : weight(generator) * std::exp(-0.2 * apart);
    }
  }
  return Matrix(w.rowwise().sum().asDiagonal()) - w;
}

TEST(RayleighDescent, FallsTowardsTheSmallestEigenvalueAndSaysHowFarItMayBe) {
  for (const Index n : {16, 48, 160}) {
    const Matrix a = laplacian_with_hub(n);
    const double smallest = Eigen::SelfAdjointEigenSolver<Matrix>(a).eigenvalues()[1];
    AlignedBuffer buffer;
    double* null = buffer.resize((kDescentVectors + 3) * n);
    double* diagonal = null + n;
    double* x = null + 2 * n;
    const Eigen::Map<Eigen::VectorXd> vector(x, n);
    double before = 1e300;
    for (const int steps : {0, 1, 2, 5, 10, 60}) {
      for (Index i = 0; i < n; ++i) {
        null[i] = 1.0 / std::sqrt(static_cast<double>(n));
        diagonal[i] = a(i, i);
        x[i] = start_entry(i);
      }
      const Descent end = rayleigh_descent<double>(
          n, diagonal, 1e9, null, steps, 1e-8, 1e9, x, null + 3 * n,
          [&](const double* v, double* image) {
            Eigen::Map<Eigen::VectorXd>(image, n) = a * Eigen::Map<const Eigen::VectorXd>(v, n);
          });
      EXPECT_NEAR(vector.norm(), 1.0, 1e-12);
      EXPECT_NEAR(vector.sum(), 0.0, 1e-12);
      EXPECT_NEAR(end.value, vector.dot(a * vector), 1e-11 * a(0, 0));
      // Rows of entries below the typical count as they are.
      EXPECT_NEAR(end.residual, (a * vector - end.value * vector).norm(), 1e-11 * a(0, 0));
      EXPECT_GE(end.value, smallest * (1.0 - 1e-12));
      EXPECT_LT(end.value, before + 1e-12) << steps;
      before = end.value;
    }
    EXPECT_NEAR(before, smallest, 1e-3 * smallest) << n;
  }
}

TEST(RayleighDescent, EndsAfterAFewStepsWhereItIsHopeless) {
  const Index n = 64;
  const Eigen::VectorXd entries = Eigen::VectorXd::LinSpaced(n, 1.0, 100.0);
  AlignedBuffer buffer;
  double* null = buffer.resize((kDescentVectors + 3) * n);
  double* constant = null + n;
  double* x = null + 2 * n;
  for (const double hopeless : {1e-6, 1e9}) {
    for (Index i = 0; i < n; ++i) {
      null[i] = 0.0;
      constant[i] = 1.0;
      x[i] = start_entry(i);
    }
    int products = 0;
    rayleigh_descent<double>(n, constant, 1.0, null, 12, 1e-12, hopeless, x, null + 3 * n,
                             [&](const double* v, double* image) {
                               ++products;
                               Eigen::Map<Eigen::VectorXd>(image, n) =
                                   entries.cwiseProduct(Eigen::Map<const Eigen::VectorXd>(v, n));
                             });
    EXPECT_EQ(products, 1 + (hopeless < 1.0 ? kFewSteps : 12));
  }
}

// (1 − δB⁻¹) t = z across the Ritz vector, after few steps that leave the space incomplete.
TEST(FloatPreconditioner, CorrectionSolvesItsEquation) {
  const Index n = 90;
  Eigen::VectorXd low = Eigen::VectorXd::LinSpaced(n, -1.0, 2.0).normalized();
  Matrix a = positive(n, 3) - 0.7 * low * low.transpose();
  a.row(0).setZero();
  a.col(0).setZero();
  a(0, 0) = 5.0;  // the null vector, an eigenvector of its own
  const Index padded = panels_of<float>(n) * PanelShape<float>::kWidth;
  AlignedBuffer matrix, inverse, space, other;
  float* factor = floats(matrix, panel_offset<float>(panels_of<float>(n)));
  float* basis = floats(space, (kMostLanczosSteps + 6) * padded);
  FloatPreconditioner preconditioner(n, factor, floats(inverse, panel_inverses<float>(n)), basis);
  fill(a, factor);
  ASSERT_TRUE(preconditioner.factorize());
  std::fill(basis, basis + 2 * padded, 0.0f);
  basis[0] = 1.0f;
  for (Index i = 1; i < n; ++i) preconditioner.vector(1)[i] = static_cast<float>(start_entry(i));
  float* start = preconditioner.vector(1);
  scale_vector(start, 1.0 / std::sqrt(inner_product<float>(start, start, padded)), padded);
  const LanczosRound& round = preconditioner.grow(1e9, [](double) { return 1e-5; });
  ASSERT_TRUE(round.converged);
  preconditioner.prepare();
  float* ritz = preconditioner.ritz_vector();
  Eigen::VectorXd x(n), z(n);
  for (Index i = 0; i < n; ++i) x[i] = ritz[i];
  std::mt19937 generator(9);
  std::normal_distribution<double> normal;
  for (Index i = 0; i < n; ++i) z[i] = i == 0 ? 0.0 : normal(generator);
  z -= x.dot(z) / x.squaredNorm() * x;
  float* right = preconditioner.behind();
  std::fill(right, right + padded, 0.0f);
  for (Index i = 0; i < n; ++i) right[i] = static_cast<float>(z[i]);
  const float* t = preconditioner.correct(right, 1e-4);
  Eigen::VectorXd solution(n);
  for (Index i = 0; i < n; ++i) solution[i] = t[i];
  Eigen::VectorXd rest = z - (solution - a.llt().solve(solution) / round.theta);
  rest -= x.dot(rest) / x.squaredNorm() * x;
  EXPECT_LT(rest.norm(), 1e-3 * z.norm());
}

}  // namespace
}  // namespace attnscope
