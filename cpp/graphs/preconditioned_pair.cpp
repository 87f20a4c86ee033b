// SPDX-License-Identifier: MIT
#include "graphs/preconditioned_pair.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graphs/laplacian_factor.h"
#include "linalg/refinement/ritz_corrections.h"

namespace attnscope {
namespace {

constexpr int kMostRounds = 8;
// Corrections of the vectors that float32 gives; most graphs take one.
constexpr int kMostCorrections = 8;
// What Lanczos steps aim at, a residual as a share of its Ritz value: one correction takes it to
// 1e-10.
constexpr double kFloatTolerance = 5e-6;
// A residual that corrections begin with, where Lanczos steps do not get further. An eigenvalue is
// unseen if the two random starts have so small a part of its vector, both of them.
constexpr double kLargestShare = 1e-4;
// A shift closer to an eigenvalue than this share of its vector's mean diagonal entry drowns in the
// factor's rounding.
constexpr double kClosestShift = 2e-6;
// What a correction in float32 reaches, as a share of what it is a correction of.
constexpr double kCorrectionShare = 3e-5;

float* floats(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<float*>(buffer.resize((size + 1) / 2));
}

// Refines the first one or two Ritz vectors of a space in float64.
//
// L on the span of the vectors x and all their corrections has the Ritz values μ, with residuals r.
// With z = B⁻¹r, B = L − σ, and 1 − (μ − σ)θ the distance of the next eigenvalue 1/θ of B, an
// eigenvector is no farther than ‖z‖ over that from x, an eigenvalue no farther than rᵀz over that
// from μ, or ‖z‖(μ − σ) at most. Only r must be exact for that: float32 changes B by little.
class PairRefinement {
 public:
  // `locked` vectors of L are known, `wanted` others are to be refined.
  PairRefinement(const SimpleLaplacian& laplacian, Index locked, Index wanted,
                 PreconditionedPairWorkspace& workspace)
      : laplacian_(laplacian),
        order_(laplacian.order()),
        length_(laplacian.padded()),
        locked_(locked),
        wanted_(wanted),
        basis_(workspace.basis.resize((locked + kVectors) * length_)),
        images_(workspace.images.resize(kVectors * length_)) {
    std::fill(basis_, basis_ + locked * length_, 0.0);
  }

  // A vector that is known, for the caller to write.
  double* locked_vector(Index k) const { return basis_ + k * length_; }
  double value(Index k) const { return values_[k]; }

  // Refines the vectors at x, as long as those of the space. False where float32 does not get
  // there. `memory` holds kCorrectionVectors.
  // solve(y, count) applies B⁻¹ to `count` vectors.
  template <class Solve>
  bool refine(double sigma, const RitzSpace& space, const float* x, float* memory, Solve&& solve) {
    for (int corrections = 0; corrections <= kMostCorrections; ++corrections) {
      const Index first = size_;
      for (Index k = 0; k < wanted_; ++k) append(x + k * space.padded);
      if (size_ == first || size_ < wanted_) return false;
      project(first);
      for (Index k = 0; k < wanted_; ++k) take_residual(k, memory + k * space.padded, space.padded);
      solve(memory, wanted_);
      double delta[2], share[2];
      for (Index k = 0; k < wanted_; ++k) delta[k] = values_[k] - sigma;
      if (!(delta[wanted_ - 1] > 0.0)) return false;
      allow_shares(delta, space.round.theta(space.wanted), memory, space.padded, share);
      if (*std::min_element(share, share + wanted_) >= 1.0) return true;
      for (Index k = 0; k < wanted_; ++k) share[k] = std::max(kCorrectionShare, 0.3 * share[k]);
      x = correct_ritz_vectors(space, wanted_, delta, share, memory, solve);
    }
    return false;
  }

 private:
  static constexpr Index kVectors = 2 * (kMostCorrections + 2);

  double* vector(Index k) const { return basis_ + (locked_ + k) * length_; }
  double* image(Index k) const { return images_ + k * length_; }
  // Behind the images of the space.
  double* residual(Index k) const { return image(size_ + k); }

  // A vector behind the others, orthonormal to them, unless it is one of their sums.
  void append(const float* from) {
    double* x = vector(size_);
    for (Index i = 0; i < length_; ++i) x[i] = i < order_ ? static_cast<double>(from[i]) : 0.0;
    if (orthonormalize(basis_, locked_ + size_, length_, x) > 0.0) ++size_;
  }

  // L on the vectors so far, of which those from `first` on are new.
  void project(Index first) {
    if (size_ - first == 2) {
      laplacian_.multiply<2>({vector(first), vector(first + 1)}, {image(first), image(first + 1)});
    } else {
      laplacian_.multiply<1>({vector(first)}, {image(first)});
    }
    for (Index k = first; k < size_; ++k) {
      for (Index i = 0; i <= k; ++i)
        projected_(k, i) = projected_(i, k) = inner_product(vector(i), image(k), length_);
    }
    pairs_ = symmetric_eigen(projected_.topLeftCorner(size_, size_));
  }

  // Value k and its residual, and that as a unit vector to `unit`.
  void take_residual(Index k, float* unit, Index padded) {
    double* x = vector(size_);
    double* r = residual(k);
    std::fill(x, x + length_, 0.0);
    std::fill(r, r + length_, 0.0);
    for (Index i = 0; i < size_; ++i) {
      add_multiple(x, pairs_.vectors(i, k), vector(i), length_);
      add_multiple(r, pairs_.vectors(i, k), image(i), length_);
    }
    add_multiple(r, -pairs_.values[k], x, length_);
    // With what rounding has left in the small matrix.
    values_[k] = pairs_.values[k] + inner_product(x, r, length_);
    lengths_[k] = std::sqrt(inner_product(r, r, length_));
    const double scale = lengths_[k] > 0.0 ? 1.0 / lengths_[k] : 0.0;
    for (Index i = 0; i < padded; ++i)
      unit[i] = i < order_ ? static_cast<float>(scale * r[i]) : 0.0f;
  }

  // Which share of every z may be left, 1 and more where it may be as it is; θ of the next
  // eigenvector is `next`, `units` are z for unit residuals.
  void allow_shares(const double* delta, double next, const float* units, Index padded,
                    double* share) const {
    const auto nodes = static_cast<double>(order_);
    double steps[2], squares = 0.0;
    for (Index k = 0; k < wanted_; ++k) {
      const float* z = units + k * padded;
      double square = 0.0;
      for (Index i = 0; i < order_; ++i) square += residual(k)[i] * static_cast<double>(z[i]);
      squares += std::max(0.0, square * lengths_[k]);
      steps[k] = lengths_[k] * std::sqrt(static_cast<double>(inner_product<float>(z, z, padded)));
    }
    for (Index k = 0; k < wanted_; ++k) {
      const double apart = std::max(0.0, 1.0 - delta[k] * next), distance = std::abs(delta[k]);
      const double error = std::max(1e-13 * values_[k], 2e-16 * nodes);
      const double of_value =
          std::max(error / (steps[k] * distance), std::sqrt(error * apart / squares));
      // An eigenvalue closer by than that may have gone unseen: were it as close as the step, the
      // error would be the step's size.
      const double of_step = std::max(1e-10 * values_[k], 1e-14 * nodes) / distance / steps[k];
      share[k] = steps[k] > 0.0 ? std::min(of_value, of_step) : 1.0;
    }
  }

  const SimpleLaplacian& laplacian_;
  Index order_, length_, locked_, wanted_;
  double* basis_;
  double* images_;
  Index size_ = 0;
  Eigen::Matrix<double, kVectors, kVectors> projected_;
  SymmetricEigen pairs_;
  double values_[2] = {};
  double lengths_[2] = {};  // of residuals
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
  PairRefinement refinement(laplacian, in_two ? 2 : 1, in_two ? 1 : 2, workspace);
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
  // Residuals fall by the same factor from look to look; a new factor costs so many blocks.
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
    const Index wanted = seeks_third ? 1 : 2;
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
    const auto share = [](const BlockRound& at, Index k) { return at.residual[k] / at.theta(k); };
    double before = 0.0;
    Index size_before = 0;
    const auto look = [&](const BlockRound& at) -> Index {
      const double rest = std::max(share(at, 0), share(at, wanted - 1));
      if (rest <= kFloatTolerance) return 0;
      // Blocks that are left if residuals fall as they did; they fall ever faster.
      double left = 0.0;
      if (before > 0.0) {
        const double fall =
            2.0 * std::log(before / rest) / static_cast<double>(at.size - size_before);
        left = std::log(rest / kFloatTolerance) / fall;
        if (!(left > 0.0) || left > patience) return 0;
      }
      before = rest;
      size_before = at.size;
      return static_cast<Index>(std::clamp(0.6 * left, 2.0, 6.0));
    };
    const Index most = std::min(kMostBlocks, (m - space.locked) / 2 - 1);
    const BlockRound round = block_lanczos_round(space, most, look, solve_two);
    if (!(round.theta(1) > 0.0)) return std::nullopt;
    form_ritz_vectors(round, space, round.size, ritz);
    // How close to its eigenvalue a shift may come.
    const auto closest = [&](Index k) {
      double sum = 0.0;
      for (Index i = 0; i < m; ++i) {
        const auto entry = static_cast<double>(ritz[k * padded + i]);
        sum += (laplacian.degree(i) + 1.0) * entry * entry;
      }
      return kClosestShift * sum;
    };
    const auto value = [&](Index k) { return sigma + 1.0 / round.theta(k); };
    const auto shift_below = [&](Index k) {
      const double up = sigma + 1.0 / (round.theta(k) + 1.5 * round.residual[k]);
      return std::min(up, value(k) - std::max(closest(k), 0.03 * (value(k + 1) - value(k))));
    };
    if (std::max(share(round, 0), share(round, wanted - 1)) <= kLargestShare) {
      if (value(0) - sigma < closest(0)) return std::nullopt;
      std::copy(lifted, lifted + padded, vectors);
      const bool two_refined = !in_two && seeks_third;
      const bool refined = refinement.refine(sigma, {padded, round, ritz, wanted},
                                             two_refined ? vectors : ritz, space.vector(0), solve);
      if (!refined) return std::nullopt;
      return in_two ? EigenvaluePair{0.0, refinement.value(0)}
                    : EigenvaluePair{refinement.value(0), refinement.value(1)};
    }
    // With μ2 known well the other is looked for from just below it.
    const bool locks = !seeks_third && share(round, 0) * value(1) < 1e-3 * (value(1) - value(0));
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
