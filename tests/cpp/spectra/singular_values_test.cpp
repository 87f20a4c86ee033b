// SPDX-License-Identifier: MIT
#include "kernels/spectra/singular_values.h"

#include <gtest/gtest.h>

#include <Eigen/SVD>
#include <numbers>
#include <utility>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

std::vector<double> values(const RowMatrix<double>& a) {
  SingularValuesWorkspace workspace;
  std::vector<double> sigma(static_cast<std::size_t>(a.rows()));
  const MatrixView<double> matrix = view(a);
  double* const out[] = {sigma.data()};
  singular_values(std::span<const MatrixView<double>>(&matrix, 1), std::span<double* const>(out),
                  workspace);
  return sigma;
}

TEST(SingularValues, EqualJacobi) {
  for (const Index n : {1, 2, 3, 8, 17, 40, 90}) {
    for (const bool causal : {true, false}) {
      const RowMatrix<double> a = testing::random_attention(n, causal, 5, 3.0);
      const Eigen::VectorXd expected = testing::singular_values(a);
      const auto sigma = values(a);
      for (Index k = 0; k < n; ++k) {
        EXPECT_NEAR(sigma[k], expected[k], 1e-13 * expected[0]) << "n = " << n << " k = " << k;
      }
    }
  }
}

TEST(SingularValues, OfRectanglesEqualJacobi) {
  for (const auto& [rows, columns] : {std::pair<Index, Index>(1, 9), {3, 7}, {7, 3}, {30, 140}}) {
    const RowMatrix<double> a = RowMatrix<double>::Random(rows, columns);
    const Eigen::VectorXd expected =
        Eigen::JacobiSVD<Eigen::MatrixXd>(Eigen::MatrixXd(a)).singularValues();
    SingularValuesWorkspace workspace;
    std::vector<double> sigma(static_cast<std::size_t>(expected.size()));
    const MatrixView<double> matrix = matrix_view(a.data(), rows, columns, columns, Index{1});
    double* const out[] = {sigma.data()};
    singular_values(std::span<const MatrixView<double>>(&matrix, 1), std::span<double* const>(out),
                    workspace);
    for (Index k = 0; k < expected.size(); ++k) EXPECT_NEAR(sigma[k], expected[k], 1e-12);
  }
}

TEST(SingularValues, FastOnesHoldTheirBoundInEveryCompany) {
  // Sizes on both sides of each way, and packs that are full and not.
  SingularValuesWorkspace workspace;
  const Index width = singular_values_width(Precision::fast);
  for (const Index n : {30, 96, 97, 130, 257}) {
    for (const Index count : n > 200 ? std::vector<Index>{2} : std::vector<Index>{3, width}) {
      std::vector<RowMatrix<double>> maps;
      std::vector<std::vector<double>> sigma(static_cast<std::size_t>(count),
                                             std::vector<double>(static_cast<std::size_t>(n)));
      std::vector<double*> out;
      for (Index k = 0; k < count; ++k) {
        const double scale = k == 1 ? 0x1p-200 : 1.0;
        maps.push_back(scale * testing::random_attention(n, false, unsigned(k), 0.5));
        out.push_back(sigma[static_cast<std::size_t>(k)].data());
      }
      std::vector<MatrixView<double>> matrices;
      for (const RowMatrix<double>& map : maps) matrices.push_back(view(map));
      singular_values(std::span<const MatrixView<double>>(matrices), std::span<double* const>(out),
                      workspace, Precision::fast);
      for (std::size_t k = 0; k < maps.size(); ++k) {
        const std::vector<double> expected = values(maps[k]);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(sigma[k][i], expected[i], 1e-5 * expected[0]) << n << " " << k << " " << i;
      }
    }
  }
}

TEST(SingularValues, RunningDifferencesHaveCosines) {
  constexpr Index n = 30;
  RowMatrix<double> a = RowMatrix<double>::Identity(n, n);
  for (Index i = 0; i + 1 < n; ++i) a(i + 1, i) = -1.0;
  const auto sigma = values(a);
  for (Index k = 1; k <= n; ++k) {
    EXPECT_NEAR(sigma[k - 1], 2.0 * std::cos(double(k) * std::numbers::pi / (2 * n + 1)), 1e-13);
  }
}

TEST(SingularValues, WeightsWhoseSquaresAreNoNumbers) {
  const RowMatrix<double> a = testing::random_attention(12, true, 5, 3.0);
  const auto sigma = values(a);
  for (const double unit : {1e-200, -1e-200, 1e-310, 1e200, -1e200}) {
    const auto scaled = values(unit * a);
    for (std::size_t k = 0; k < sigma.size(); ++k) {
      EXPECT_NEAR(scaled[k] / std::abs(unit), sigma[k], 1e-13 + 1e-322 / std::abs(unit));
    }
  }
}

TEST(SingularValues, AMatrixHasItsOwnBitsInEveryCompany) {
  for (const Index n : {9, 33, 140}) {
    std::vector<RowMatrix<double>> maps;
    std::vector<MatrixView<double>> views;
    std::vector<std::vector<double>> sigma;
    std::vector<double*> out;
    for (Index k = 0; k < singular_values_width(); ++k) {
      maps.push_back(testing::random_attention(n, k % 2 == 0, unsigned(k), 2.0));
    }
    sigma.assign(maps.size(), std::vector<double>(static_cast<std::size_t>(n)));
    for (std::size_t k = 0; k < maps.size(); ++k) {
      views.push_back(view(maps[k]));
      out.push_back(sigma[k].data());
    }
    SingularValuesWorkspace workspace;
    for (std::size_t count = 1; count <= maps.size(); ++count) {
      // In memory of just that size: what lies behind is no matrix.
      const std::vector<MatrixView<double>> first_views(views.begin(),
                                                        views.begin() + Index(count));
      const std::vector<double*> places(out.begin(), out.begin() + Index(count));
      singular_values(std::span<const MatrixView<double>>(first_views),
                      std::span<double* const>(places), workspace);
      for (std::size_t k = 0; k < count; ++k) EXPECT_EQ(sigma[k], values(maps[k])) << n << " " << k;
    }
  }
}

TEST(SingularValues, ZerosAndOneToken) {
  for (const double sigma : values(RowMatrix<double>::Zero(7, 7))) EXPECT_EQ(sigma, 0.0);
  EXPECT_EQ(values(RowMatrix<double>::Constant(1, 1, -0.5))[0], 0.5);
}

}  // namespace
}  // namespace attnscope
