// SPDX-License-Identifier: MIT
#include "random_matrices/counted_distance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

// Tridiagonal matrices side by side, and the eigenvalues of each by a dense solver.
struct Matrices {
  Index n;
  AlignedBuffer numbers;
  double* diagonal;
  double* beside;
  std::vector<std::vector<double>> eigenvalues;

  // Squares of bidiagonal matrices, whose entries fall by `grade` from row to row.
  Matrices(Index size, double grade, unsigned seed) : n(size) {
    const Index width = dqds_width();
    diagonal = numbers.resize(2 * n * width);
    beside = diagonal + n * width;
    std::fill(diagonal, diagonal + 2 * n * width, 0.0);
    std::mt19937 generator(seed);
    std::normal_distribution<double> normal;
    for (Index lane = 0; lane < width; ++lane) {
      Eigen::MatrixXd b = Eigen::MatrixXd::Zero(n, n);
      double scale = 1.0;
      for (Index i = 0; i < n; ++i, scale *= grade) {
        b(i, i) = scale * normal(generator);
        if (i + 1 < n) b(i, i + 1) = scale * normal(generator);
      }
      const Eigen::MatrixXd t = b.transpose() * b;
      for (Index i = 0; i < n; ++i) {
        diagonal[i * width + lane] = t(i, i);
        if (i + 1 < n) beside[i * width + lane] = t(i + 1, i);
      }
      const Eigen::VectorXd values = testing::eigenvalues(t);
      eigenvalues.emplace_back(values.begin(), values.end());
    }
  }

  std::vector<CertifiedDistance> distances(const std::vector<ComparedSpectrum>& spectra) const {
    std::vector<CertifiedDistance> certified(spectra.size());
    CountedDistanceWorkspace workspace;
    counted_distances(diagonal, beside, n, spectra, certified, workspace);
    return certified;
  }
  std::vector<double> largest(std::size_t lane, Index count) const {
    return {eigenvalues[lane].end() - count, eigenvalues[lane].end()};
  }
};

TEST(CountedDistance, EqualsThatOfTheEigenvalues) {
  const auto width = static_cast<std::size_t>(dqds_width());
  for (const Index n : {8, 9, 33, 128, 200}) {
    for (const double grade : {1.0, 0.97, 0.8}) {
      const Matrices matrices(n, grade, static_cast<unsigned>(n));
      std::vector<ComparedSpectrum> spectra;
      for (std::size_t lane = 0; lane < width; ++lane) {
        const Index varying = n - static_cast<Index>(lane % 3);
        const double gamma = static_cast<double>(varying) / static_cast<double>(n);
        spectra.push_back({lane % 2 == 0 ? NullLaw::triangular() : NullLaw::marchenko_pastur(gamma),
                           varying, 1e-15});
      }
      const auto certified = matrices.distances(spectra);
      for (std::size_t lane = 0; lane < width; ++lane) {
        const NullLaw& law = spectra[lane].law;
        const auto values = matrices.largest(lane, spectra[lane].values);
        const double floor = kResolvedShare * law.edge();
        // A dense solver does not know values near the floor to all their digits.
        const bool clear = std::ranges::none_of(
            values, [=](double x) { return x > floor - 1e-13 && x < 1e4 * floor; });
        if (!clear) continue;
        EXPECT_NEAR(certified[lane].distance, kolmogorov_smirnov(values, law, floor), 3e-11)
            << n << ' ' << grade << ' ' << lane;
        EXPECT_LE(certified[lane].uncertain, 1e-10) << n << ' ' << grade << ' ' << lane;
      }
    }
  }
}

TEST(CountedDistance, SaysHowFarTheErrorOfItsValuesReaches) {
  const Matrices matrices(64, 0.9, 5);
  const NullLaw law = NullLaw::triangular();
  for (const double error : {1e-12, 1e-9, 1e-6, 1e-3}) {
    const auto certified = matrices.distances({{law, 64, error}}).front();
    const auto values = matrices.largest(0, 64);
    for (const double side : {-1.0, 1.0}) {
      std::vector<double> moved = values;
      for (double& x : moved) x += side * error;
      const double floor = kResolvedShare * law.edge();
      EXPECT_NEAR(kolmogorov_smirnov(moved, law, floor), certified.distance,
                  certified.uncertain + 3e-11)
          << error;
    }
    EXPECT_LE(certified.uncertain, 1.0) << error;
  }
}

TEST(CountedDistance, DoesNotDependOnItsCompany) {
  const Matrices matrices(40, 0.95, 6);
  std::vector<ComparedSpectrum> alike(static_cast<std::size_t>(dqds_width()),
                                      {NullLaw::triangular(), 40, 1e-15});
  std::vector<ComparedSpectrum> others = alike;
  for (std::size_t lane = 1; lane < others.size(); ++lane)
    others[lane] = {NullLaw::marchenko_pastur(0.5), 20, 1e-9};
  EXPECT_EQ(matrices.distances(alike).front().distance,
            matrices.distances(others).front().distance);
}

}  // namespace
}  // namespace attnscope
