// SPDX-License-Identifier: MIT
// How many sweeps clusters of singular values take.
#include "linalg/dqds_sweeps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

// Square roots of a cluster's numbers and of others that lie between them, beside which entries are
// just too large to be neglected: what the Laplacian of a head is that looks at single tokens.
struct Clusters {
  Index n;
  AlignedBuffer buffers[4];
  double *diagonal, *superdiagonal, *arrays, *values;

  Clusters(Index size, double spread, unsigned seed) : n(size) {
    diagonal = buffers[0].resize(n * dqds::kWidth);
    superdiagonal = buffers[1].resize(n * dqds::kWidth);
    arrays = buffers[2].resize(dqds::Sweeps::kArrays * dqds::Sweeps::spacing(n));
    values = buffers[3].resize(n * dqds::kWidth);
    std::mt19937 generator(seed);
    std::uniform_real_distribution<double> uniform;
    for (Index entry = 0; entry < n * dqds::kWidth; ++entry) {
      const bool apart = generator() % 12 == 0;
      const double q = apart ? uniform(generator) : 0.0245 * (1.0 + spread * uniform(generator));
      diagonal[entry] = std::sqrt(q);
      superdiagonal[entry] =
          std::pow(10.0, apart ? -6.0 * uniform(generator) - 2.0 : -6.0 * uniform(generator) - 9.0);
    }
  }
};

TEST(DqdsSweeps, ClustersTakeFewSweepsAValue) {
  for (const double spread : {0.0, 1e-14, 1e-11}) {
    for (unsigned seed = 0; seed < 4; ++seed) {
      Clusters problem(150, spread, seed);
      dqds::Sweeps sweeps(problem.n, problem.arrays, problem.values);
      alignas(64) double scale[dqds::kWidth];
      sweeps.run(problem.diagonal, problem.superdiagonal, scale, 7 * problem.n);
      for (Index lane = 0; lane < dqds::kWidth; ++lane) {
        ASSERT_TRUE(sweeps.done(lane)) << "spread " << spread << " seed " << seed;
        Eigen::MatrixXd b = Eigen::MatrixXd::Zero(problem.n, problem.n);
        std::vector<double> computed;
        for (Index i = 0; i < problem.n; ++i) {
          const Index entry = i * dqds::kWidth + lane;
          b(i, i) = problem.diagonal[entry];
          if (i + 1 < problem.n) b(i, i + 1) = problem.superdiagonal[entry];
          computed.push_back(std::sqrt(problem.values[entry]) * scale[lane]);
        }
        std::sort(computed.rbegin(), computed.rend());
        const Eigen::VectorXd expected = testing::singular_values(b);
        for (Index k = 0; k < problem.n; ++k) {
          ASSERT_NEAR(computed[k], expected[k], 1e-14 * expected[0]) << lane << " " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
