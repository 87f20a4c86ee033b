// SPDX-License-Identifier: MIT
#include "graphs/laplacian_factor.h"

#include <gtest/gtest.h>

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <random>

#include "matrices.h"

namespace attnscope {
namespace {

struct Graph {
  SimpleLaplacian laplacian;
  Eigen::MatrixXd matrix;
};

// A tree of n nodes and some more edges, whose first `apart` nodes the others do not touch.
Graph sparse_graph(Index n, Index apart, unsigned seed) {
  std::mt19937 generator(seed);
  LevelTable level;
  level.resize(n);
  const auto join = [&](Index i, Index j) { level.row(i)[j] = level.row(j)[i] = 1; };
  for (Index i = 1; i < n; ++i) {
    const Index first = i >= apart ? apart : 0;
    for (int time = 0; time < 3 && i > first; ++time)
      join(i, first + static_cast<Index>(generator() % static_cast<unsigned>(i - first)));
  }
  std::vector<Index> nodes;
  std::vector<double> degree;
  Graph graph;
  graph.matrix = Eigen::MatrixXd::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    nodes.push_back(i);
    for (Index j = 0; j < n; ++j) {
      if (level.row(i)[j] == 0) continue;
      graph.matrix(i, j) -= 1.0;
      graph.matrix(i, i) += 1.0;
    }
    degree.push_back(graph.matrix(i, i));
  }
  graph.laplacian.read({level, 0, nodes, degree});
  return graph;
}

// L⁻¹ on the complement of the null vectors, whichever nodes are eliminated and however many.
TEST(LaplacianFactor, SolvesOnTheComplementOfTheNullVectors) {
  for (const Index n : {40, 65, 130, 300}) {
    for (const Index apart : {Index{0}, Index{12}}) {
      const Graph graph = sparse_graph(n, apart, static_cast<unsigned>(n));
      std::vector<Index> order;
      const Index core = order_for_elimination(graph.laplacian, order);
      EXPECT_TRUE(core < n || n < 130);
      SimpleLaplacian reordered;
      if (core < n) {
        std::vector<Index> sorted = order;
        std::sort(sorted.begin(), sorted.end());
        for (Index i = 0; i < n; ++i) ASSERT_EQ(sorted[i], i);
        for (Index i = core; i < n; ++i) {
          for (Index j = core; j < i; ++j) ASSERT_EQ(graph.matrix(order[i], order[j]), 0.0);
        }
        reordered.reorder(graph.laplacian, order);
      } else {
        for (Index i = 0; i < n; ++i) order.push_back(i);
        reordered = graph.laplacian;
      }
      LaplacianFactorWorkspace workspace;
      LaplacianFactor factor(reordered, core, workspace);
      const Index padded = factor.padded();
      AlignedBuffer memory;
      auto* vectors = reinterpret_cast<float*>(memory.resize(2 * padded));
      std::fill(vectors, vectors + 4 * padded, 0.0f);
      Eigen::VectorXd tells = Eigen::VectorXd::Zero(n);
      if (apart > 0) {
        std::vector<Index> piece;
        for (Index i = 0; i < apart; ++i) piece.push_back(i);
        write_piece_vector(piece, n, tells.data());
        for (Index i = 0; i < n; ++i) vectors[2 * padded + i] = static_cast<float>(tells[order[i]]);
      }
      ASSERT_TRUE(factor.factorize(apart > 0 ? vectors + 2 * padded : nullptr,
                                   2.0 * static_cast<double>(n), 0.0));
      const Eigen::VectorXd null =
          Eigen::VectorXd::Constant(n, 1.0 / std::sqrt(static_cast<double>(n)));
      const auto project = [&](Eigen::VectorXd v) {
        v -= null * null.dot(v);
        return Eigen::VectorXd(v - tells * tells.dot(v));
      };
      const Eigen::VectorXd right = project(Eigen::VectorXd::LinSpaced(n, -1.0, 2.0).array().sin());
      const Eigen::MatrixXd lifted =
          graph.matrix + null * null.transpose() + tells * tells.transpose();
      const Eigen::VectorXd expected = lifted.llt().solve(right);
      for (Index i = 0; i < n; ++i)
        vectors[i] = vectors[padded + i] = static_cast<float>(right[order[i]]);
      factor.solve(vectors);
      Eigen::VectorXd solution(n);
      for (Index i = 0; i < n; ++i) solution[order[i]] = static_cast<double>(vectors[i]);
      EXPECT_LT((project(solution) - expected).norm(), 1e-4 * expected.norm()) << n << " " << apart;
      // A vector gives the same bits beside another.
      factor.solve(vectors + padded, vectors + 3 * padded);
      EXPECT_TRUE(std::equal(vectors, vectors + padded, vectors + padded));
    }
  }
}

}  // namespace
}  // namespace attnscope
