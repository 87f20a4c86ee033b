// SPDX-License-Identifier: MIT
#include "graphs/simple_laplacian.h"

#include <gtest/gtest.h>

#include <random>

#include "matrices.h"

namespace attnscope {
namespace {

TEST(SimpleLaplacian, ProductsEqualThoseOfTheMatrix) {
  std::mt19937 generator(11);
  std::uniform_real_distribution<double> uniform(-1.0, 1.0);
  for (const Index n : {1, 2, 15, 63, 64, 65, 130}) {
    for (const bool all : {true, false}) {
      LevelTable level;
      level.resize(n);
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < i; ++j) {
          const auto drawn = static_cast<Level>(generator() % 4);
          level.row(i)[j] = level.row(j)[i] = drawn;
        }
      }
      std::vector<Index> nodes;
      for (Index i = 0; i < n; ++i) {
        if (all || i % 3 != 1) nodes.push_back(i);
      }
      const auto m = static_cast<Index>(nodes.size());
      Eigen::MatrixXd expected = Eigen::MatrixXd::Zero(m, m);
      std::vector<double> degree(nodes.size(), 0.0);
      for (Index i = 0; i < m; ++i) {
        for (Index j = 0; j < m; ++j) {
          if (level.row(nodes[i])[nodes[j]] <= 2) continue;
          expected(i, j) -= 1.0;
          expected(i, i) += 1.0;
          degree[i] += 1.0;
        }
      }
      SimpleLaplacian laplacian;
      laplacian.read({level, 2, nodes, degree});
      ASSERT_EQ(laplacian.order(), m);
      const Index padded = laplacian.padded();
      AlignedBuffer memory;
      double* x = memory.resize(4 * padded);
      std::fill(x, x + 4 * padded, 0.0);
      for (Index k = 0; k < 2; ++k) {
        for (Index i = 0; i < m; ++i) x[k * padded + i] = uniform(generator);
      }
      double* y = x + 2 * padded;
      laplacian.multiply<2>({x, x + padded}, {y, y + padded});
      for (Index k = 0; k < 2; ++k) {
        const Eigen::Map<const Eigen::VectorXd> vector(x + k * padded, m);
        const Eigen::Map<const Eigen::VectorXd> image(y + k * padded, m);
        EXPECT_LT((image - expected * vector).cwiseAbs().maxCoeff(), 1e-13) << n << " " << all;
        for (Index i = m; i < padded; ++i) EXPECT_EQ(y[k * padded + i], 0.0);
      }
      // A vector gives the same bits alone.
      const std::vector<double> second(y + padded, y + 2 * padded);
      laplacian.multiply<1>({x + padded}, {y});
      EXPECT_EQ(std::vector<double>(y, y + padded), second);
    }
  }
}

}  // namespace
}  // namespace attnscope
