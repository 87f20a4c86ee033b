// SPDX-License-Identifier: MIT
#include "graphs/preconditioned_pair.h"

#include <algorithm>
#include <cmath>

#include "graphs/pair_refinement.h"

namespace attnscope {
namespace {

constexpr int kMostRounds = 8;
// What Lanczos steps aim at, a residual as a share of its Ritz value: one correction takes it to
// 1e-10.
constexpr double kFloatTolerance = 5e-6;
// A residual that corrections begin with, where Lanczos steps do not get further. An eigenvalue is
// unseen if the two random starts have so small a part of its vector, both of them.
constexpr double kLargestShare = 1e-4;

float* floats(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<float*>(buffer.resize((size + 1) / 2));
}

// How close to its eigenvalue a shift may come: this share of its vector's mean diagonal entry; a
// closer one drowns in the factor's rounding.
double closest_shift(const SimpleLaplacian& laplacian, const float* vector) {
  constexpr double kShare = 2e-6;
  double mean = 0.0;
  for (Index i = 0; i < laplacian.order(); ++i) {
    const auto entry = static_cast<double>(vector[i]);
    mean += (laplacian.degree(i) + 1.0) * entry * entry;
  }
  return kShare * mean;
}

// The residual of a Ritz value as a share of it.
double relative_residual(const BlockRound& round, Index k) {
  return round.residual[k] / round.theta(k);
}

// Looks at the residuals of a round's first `targets` Ritz values, as seldom as their fall allows:
// a look costs as much as some steps.
class Lookout {
 public:
  Lookout(Index targets, double patience) : targets_(targets), patience_(patience) {}

  // Blocks until the next look, none where the round has gone far enough or crawls.
  Index operator()(const BlockRound& round) {
    const double rest =
        std::max(relative_residual(round, 0), relative_residual(round, targets_ - 1));
    if (rest <= kFloatTolerance) return 0;
    // Blocks that are left if residuals fall as they did; they fall ever faster.
    double left = 0.0;
    if (before_ > 0.0) {
      const double fall = 2.0 * std::log(before_ / rest) / static_cast<double>(round.size - size_);
      left = std::log(rest / kFloatTolerance) / fall;
      if (!(left > 0.0) || left > patience_) return 0;
    }
    before_ = rest;
    size_ = round.size;
    return static_cast<Index>(std::clamp(0.6 * left, 2.0, 6.0));
  }

 private:
  Index targets_;
  double patience_;
  double before_ = 0.0;  // the residual at the last look
  Index size_ = 0;       // of the space then
};

}  // namespace

std::optional<EigenvaluePair> preconditioned_pair(const SimpleLaplacian& graph,
                                                  const std::vector<Index>& one_piece,
                                                  PreconditionedPairWorkspace& workspace) {
  const Index m = graph.order();
  const auto nodes = static_cast<double>(m);
  const bool in_two = !one_piece.empty();
  if (m < 12) return std::nullopt;
  std::vector<Index>& order = workspace.order;
  const Index core = order_for_elimination(graph, order);
  if (core < m) workspace.reordered.reorder(graph, order);
  const SimpleLaplacian& laplacian = core < m ? workspace.reordered : graph;
  LaplacianFactor factor(laplacian, core, workspace.factor);
  const Index padded = factor.padded();
  PairRefinement refinement(laplacian, in_two ? 2 : 1, in_two ? 1 : 2, workspace.basis,
                            workspace.images);
  std::fill(refinement.locked_vector(0), refinement.locked_vector(0) + m, 1.0 / std::sqrt(nodes));
  if (in_two) {
    double* vector = refinement.locked_vector(1);
    write_piece_vector(one_piece, m, vector);
    if (core < m) {
      const std::vector<double> natural(vector, vector + m);
      for (Index i = 0; i < m; ++i) vector[i] = natural[order[i]];
    }
  }

  float* krylov = floats(workspace.krylov, (2 + 2 * kMostBlocks + 2) * padded);
  static_assert(kCorrectionVectors <= 2 * kMostBlocks);
  for (Index k = 0; k < (in_two ? 2 : 1); ++k) {
    for (Index i = 0; i < padded; ++i)
      krylov[k * padded + i] = i < m ? static_cast<float>(refinement.locked_vector(k)[i]) : 0.0f;
  }
  float* lifted = krylov + padded;  // the vector of μ2, once it is known
  BlockKrylovSpace<float> space{padded, m, in_two ? 2 : 1, krylov};
  space.draw(0);
  space.draw(1);
  // The lifted vector, and the Ritz vectors.
  float* vectors = floats(workspace.ritz, (1 + 2 * kMostBlocks) * padded);
  float* ritz = vectors + padded;
  // A new factor and the first blocks with it cost as much as so many blocks more.
  const double patience = nodes / 25.0 + 15.0;
  double lift = 2.0 * nodes;
  double sigma = 0.0, below = 0.0;
  for (int attempt = 0; attempt < kMostRounds; ++attempt) {
    const bool seeks_third = space.locked == 2;  // μ3 is what is left to find
    if (!factor.factorize(seeks_third ? lifted : nullptr, lift, sigma)) {
      if (sigma == below) return std::nullopt;
      sigma = below + 0.25 * (sigma - below);
      continue;
    }
    below = sigma;
    const Index targets = seeks_third ? 1 : 2;
    // What elimination leaves along the vectors that are known is of no use.
    const auto solve_two = [&](float* x, float* y) {
      factor.solve(x, y);
      remove_parts<float>(krylov, space.locked, padded, x);
      remove_parts<float>(krylov, space.locked, padded, y);
    };
    const auto solve = [&](float* x, Index count) {
      if (count == 2) return solve_two(x, x + padded);
      factor.solve(x);
      remove_parts<float>(krylov, space.locked, padded, x);
    };
    const Index most = std::min(kMostBlocks, (m - space.locked) / 2 - 1);
    const BlockRound round =
        block_lanczos_round(space, most, Lookout(targets, patience), solve_two);
    if (!(round.theta(1) > 0.0)) return std::nullopt;
    form_ritz_vectors(round, space, round.size, ritz);
    const auto closest = [&](Index k) { return closest_shift(laplacian, ritz + k * padded); };
    const auto value = [&](Index k) { return sigma + 1.0 / round.theta(k); };
    const auto shift_below = [&](Index k) {
      // A shift that is much closer to its eigenvalue than the others are leaves float32 few digits
      // for them.
      double distance = std::max(2.0 * closest(k), 0.03 * (value(k + 1) - value(k)));
      if (k == 1) distance = std::max(distance, 0.01 * (value(1) - value(0)));
      return std::min(sigma + 1.0 / (round.theta(k) + 1.5 * round.residual[k]),
                      value(k) - distance);
    };
    if (std::max(relative_residual(round, 0), relative_residual(round, targets - 1)) <=
        kLargestShare) {
      if (value(0) - sigma < 0.5 * closest(0)) return std::nullopt;
      std::copy(lifted, lifted + padded, vectors);
      const bool two_refined = !in_two && seeks_third;
      const bool refined = refinement.refine(sigma, {padded, round, ritz, targets},
                                             two_refined ? vectors : ritz, space.vector(0), solve);
      if (!refined) return std::nullopt;
      return in_two ? EigenvaluePair{0.0, refinement.value(0)}
                    : EigenvaluePair{refinement.value(0), refinement.value(1)};
    }
    // With μ2 known well the other is looked for from just below it.
    const bool locks =
        !seeks_third && relative_residual(round, 0) * value(1) < 1e-3 * (value(1) - value(0));
    const double up = shift_below(locks ? 1 : 0);
    if (!(up > sigma)) return std::nullopt;
    if (locks) {
      lift = 4.0 * (value(1) - value(0));
      std::copy(ritz, ritz + 3 * padded, lifted);
      space.locked = 2;
    } else {
      std::copy(ritz, ritz + 2 * padded, space.vector(0));
    }
    sigma = up;
  }
  return std::nullopt;
}

}  // namespace attnscope
