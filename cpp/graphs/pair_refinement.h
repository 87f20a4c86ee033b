// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graphs/simple_laplacian.h"
#include "linalg/refinement/ritz_corrections.h"

namespace attnscope {

// Refines the first one or two Ritz vectors of a space in float64.
//
// L on the span of the vectors x and all their corrections has the Ritz values μ, with residuals r.
// With z = B⁻¹r, B = L − σ, and 1 − (μ − σ)θ the distance of the next eigenvalue 1/θ of B, an
// eigenvector is no farther than ‖z‖ over that from x, an eigenvalue no farther than rᵀz over that
// from μ, or ‖z‖(μ − σ) at most. Only r must be exact for that: float32 changes B by little.
class PairRefinement {
 public:
  // `locked` vectors of L are known, `targets` others are to be refined.
  PairRefinement(const SimpleLaplacian& laplacian, Index locked, Index targets,
                 AlignedBuffer& basis, AlignedBuffer& images)
      : laplacian_(laplacian),
        order_(laplacian.order()),
        length_(laplacian.padded()),
        locked_(locked),
        targets_(targets),
        basis_(basis.resize((locked + kVectors) * length_)),
        images_(images.resize(kVectors * length_)) {
    std::fill(basis_, basis_ + locked * length_, 0.0);
  }

  // A vector that is known, for the caller to write.
  double* locked_vector(Index k) const { return basis_ + k * length_; }
  double value(Index k) const { return values_[k]; }

  // Refines the vectors at x, as long as those of the space; solve(y, count) applies B⁻¹ to `count`
  // of them. False where float32 does not get there. `memory` holds kCorrectionVectors.
  template <class Solve>
  bool refine(double sigma, const RitzSpace& space, const float* x, float* memory, Solve&& solve) {
    const Index padded = space.padded;
    double before = 0.0;
    Index added = targets_;
    for (int corrections = 0; corrections <= kMostCorrections; ++corrections) {
      const Index first = size_;
      for (Index k = 0; k < added; ++k) append(x + k * padded);
      if (size_ == first || size_ < targets_) return false;
      project(first);
      float* ritz = memory + targets_ * padded;
      for (Index k = 0; k < targets_; ++k)
        take_residual(k, memory + k * padded, ritz + k * padded, padded);
      solve(memory, targets_);
      // Rounding of r along a vector of a much smaller eigenvalue would be all of z.
      for (Index k = 0; k < targets_; ++k)
        remove_parts(ritz, targets_, padded, memory + k * padded);
      double delta[2], share[2];
      for (Index k = 0; k < targets_; ++k) delta[k] = values_[k] - sigma;
      if (!(delta[targets_ - 1] > 0.0)) return false;
      allow_shares(delta, space.round.theta(space.targets), memory, padded, share);
      const double least = *std::min_element(share, share + targets_);
      if (least >= 1.0) return true;
      // Corrections that gain so little gain nothing in float32.
      if (!(least > 1.5 * before)) return false;
      before = least;
      added = 0;
      for (Index k = 0; k < targets_; ++k) {
        if (share[k] >= 1.0) continue;
        if (added < k) std::copy_n(memory + k * padded, padded, memory);
        delta[added] = delta[k];
        // Below σ the largest part of z is no part of the correction.
        share[added++] =
            delta[k] < 0.0 ? kCorrectionShare : std::max(kCorrectionShare, 0.3 * share[k]);
      }
      x = correct_ritz_vectors(space, added, delta, share, memory, solve);
    }
    return false;
  }

 private:
  // Most graphs take one or two.
  static constexpr int kMostCorrections = 8;
  static constexpr Index kVectors = 2 * (kMostCorrections + 2);
  // What a correction in float32 reaches, as a share of what it is a correction of.
  static constexpr double kCorrectionShare = 3e-5;

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

  // Value k and its residual, that as a unit vector to `unit`, and the Ritz vector to `ritz`.
  void take_residual(Index k, float* unit, float* ritz, Index padded) {
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
    for (Index i = 0; i < padded; ++i) {
      unit[i] = i < order_ ? static_cast<float>(scale * r[i]) : 0.0f;
      ritz[i] = i < order_ ? static_cast<float>(x[i]) : 0.0f;
    }
  }

  // Which share of every z may be left, 1 and more where it may be as it is; θ of the next
  // eigenvector is `next`, `units` are z for unit residuals.
  void allow_shares(const double* delta, double next, const float* units, Index padded,
                    double* share) const {
    const auto nodes = static_cast<double>(order_);
    double steps[2], parts[2];
    for (Index k = 0; k < targets_; ++k) {
      if (delta[k] < 0.0) {
        // B⁻¹ is large just above σ, where (L − μ)⁻¹ is not.
        steps[k] = lengths_[k] / (values_[1] - values_[0]);
        parts[k] = lengths_[k] * steps[k];
      } else {
        const float* z = units + k * padded;
        const double* r = residual(k);
        parts[k] = std::max(0.0, std::inner_product(r, r + order_, z, 0.0) * lengths_[k]);
        steps[k] = lengths_[k] * std::sqrt(static_cast<double>(inner_product<float>(z, z, padded)));
      }
    }
    const double squares = std::reduce(parts, parts + targets_);
    for (Index k = 0; k < targets_; ++k) {
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
  Index order_, length_, locked_, targets_;
  double* basis_;
  double* images_;
  Index size_ = 0;
  Eigen::Matrix<double, kVectors, kVectors> projected_;
  SymmetricEigen pairs_;
  double values_[2] = {};
  double lengths_[2] = {};  // of residuals
};

}  // namespace attnscope
