// SPDX-License-Identifier: MIT
#include "linalg/dqds.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "matrices.h"

namespace attnscope {
namespace {

// Bidiagonals of several kinds, one a lane.
struct Problem {
  Index n;
  AlignedBuffer buffers[2];
  double* diagonal;
  double* superdiagonal;

  Problem(Index size, unsigned seed) : n(size) {
    const Index width = dqds_width();
    diagonal = buffers[0].resize(n * width);
    superdiagonal = buffers[1].resize(n * width);
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (Index i = 0; i < n; ++i) {
      for (Index lane = 0; lane < width; ++lane) {
        double a = normal(generator);
        double b = normal(generator);
        if (lane % 4 == 1) {  // graded over 16 orders
          const double grade = std::pow(10.0, -16.0 * double(i) / double(n));
          a *= grade;
          b *= grade;
        } else if (lane % 4 == 2) {  // ties, zeros, splits
          a = double(generator() % 3);
          b = double(generator() % 2);
        } else if (lane % 4 == 3) {
          a = 1.0;
          b = lane % 8 == 3 ? 0.0 : 1e-9;
        }
        diagonal[i * width + lane] = a;
        superdiagonal[i * width + lane] = b;
      }
    }
  }

  Eigen::VectorXd expected(Index lane) const {
    Eigen::MatrixXd b = Eigen::MatrixXd::Zero(n, n);
    for (Index i = 0; i < n; ++i) {
      b(i, i) = diagonal[i * dqds_width() + lane];
      if (i + 1 < n) b(i, i + 1) = superdiagonal[i * dqds_width() + lane];
    }
    return testing::singular_values(b);
  }

  std::vector<std::vector<double>> solve(Index most_sweeps = 0) const {
    std::vector<std::vector<double>> values(static_cast<std::size_t>(dqds_width()));
    std::vector<double*> out;
    for (auto& lane : values) {
      lane.resize(static_cast<std::size_t>(n));
      out.push_back(lane.data());
    }
    DqdsWorkspace workspace;
    bidiagonal_singular_values(diagonal, superdiagonal, n, out, workspace, most_sweeps);
    return values;
  }
};

TEST(Dqds, EqualsJacobi) {
  for (const Index n : {1, 2, 3, 4, 5, 9, 17, 40, 75}) {
    for (unsigned seed = 0; seed < 6; ++seed) {
      const Problem problem(n, seed);
      const auto values = problem.solve();
      for (Index lane = 0; lane < dqds_width(); ++lane) {
        const Eigen::VectorXd expected = problem.expected(lane);
        for (Index k = 0; k < n; ++k) {
          EXPECT_NEAR(values[lane][k], expected[k], 2e-13 * expected[0])
              << "n = " << n << " lane = " << lane << " k = " << k;
        }
      }
    }
  }
}

TEST(Dqds, ALaneThatRunsOutOfSweepsIsSolvedAlone) {
  for (const Index most : {1, 7}) {
    const Problem problem(30, 1);
    const auto values = problem.solve(most);
    for (Index lane = 0; lane < dqds_width(); ++lane) {
      const Eigen::VectorXd expected = problem.expected(lane);
      for (Index k = 0; k < problem.n; ++k) {
        EXPECT_NEAR(values[lane][k], expected[k], 2e-13 * expected[0]) << lane << " " << k;
      }
    }
  }
}

TEST(Dqds, LanesDoNotSeeEachOther) {
  for (unsigned seed = 0; seed < 4; ++seed) {
    const Problem problem(33, seed);
    const auto together = problem.solve();
    for (Index lane = 0; lane < dqds_width(); ++lane) {
      Problem single(33, seed);
      for (Index i = 0; i < single.n; ++i) {
        for (Index other = 0; other < dqds_width(); ++other) {
          if (other == lane) continue;
          single.diagonal[i * dqds_width() + other] = 0.0;
          single.superdiagonal[i * dqds_width() + other] = 0.0;
        }
      }
      EXPECT_EQ(single.solve()[lane], together[lane]) << "lane " << lane;
    }
  }
}

TEST(TridiagonalEigenvalues, EqualEigenSolverAndDoNotSeeEachOther) {
  for (const Index n : {1, 2, 3, 8, 33, 70}) {
    const Problem problem(n, 7);
    const Index width = dqds_width();
    Eigen::MatrixXd values(n, width), again(n, width);
    DqdsWorkspace workspace;
    // Diagonals of either sign: not positive definite.
    tridiagonal_eigenvalues(problem.diagonal, problem.superdiagonal, n, width, values.data(),
                            workspace);
    for (Index lane = 0; lane < width; ++lane) {
      Eigen::MatrixXd t = Eigen::MatrixXd::Zero(n, n);
      Problem single(n, 7);
      for (Index i = 0; i < n; ++i) {
        t(i, i) = problem.diagonal[i * width + lane];
        if (i + 1 < n) t(i, i + 1) = t(i + 1, i) = problem.superdiagonal[i * width + lane];
        for (Index other = 0; other < width; ++other) {
          if (other == lane) continue;
          single.diagonal[i * width + other] = single.superdiagonal[i * width + other] = 0.0;
        }
      }
      const Eigen::VectorXd expected = testing::eigenvalues(t);
      const double largest = std::max(1e-300, expected.cwiseAbs().maxCoeff());
      for (Index k = 0; k < n; ++k) {
        EXPECT_NEAR(values(k, lane), expected[n - 1 - k], 2e-13 * largest)
            << "n = " << n << " lane = " << lane << " k = " << k;
      }
      tridiagonal_eigenvalues(single.diagonal, single.superdiagonal, n, width, again.data(),
                              workspace);
      EXPECT_EQ(again.col(lane), values.col(lane)) << "n = " << n << " lane = " << lane;
    }
  }
}

}  // namespace
}  // namespace attnscope
