// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "linalg/lanczos/shifted_lanczos.h"
#include "linalg/panel_cholesky.h"
#include "linalg/refinement/missed_eigenvalue.h"

// What a float32 factor says of a float64 matrix: its smallest eigenvalue to some digits, and
// corrections of its vector.
namespace attnscope {

// The float32 Cholesky factor of B = A − σ in panels, and the Krylov space of its inverse that one
// round of Lanczos steps grew, on the complement of the first vector of `basis`.
class FloatPreconditioner {
 public:
  static constexpr Index kVectors = kMostLanczosSteps + 1 + kSecondVectors;

  // `factor`: panel_offset<float>(count) numbers, where the caller puts B; `inverses`:
  // panel_inverses<float>; `basis`: kVectors vectors of count panels.
  FloatPreconditioner(Index n, float* factor, float* inverses, float* basis)
      : n_(n),
        count_(panels_of<float>(n)),
        padded_(count_ * PanelShape<float>::kWidth),
        factor_(factor),
        inverses_(inverses),
        basis_(basis) {}

  Index padded() const { return padded_; }
  float* vector(Index k) const { return basis_ + k * padded_; }

  // False where B is not positive definite.
  bool factorize() { return panel_factorize(factor_, count_, inverses_); }
  void solve(float* x) const { panel_solve<float>(factor_, count_, inverses_, x); }

  // Lanczos steps from vector 1, see lanczos_round.
  template <class Tolerance>
  const LanczosRound& grow(double patience, Tolerance&& tolerance) {
    round_ =
        lanczos_round(padded_, n_ - 1, patience, basis_, tolerance, [this](float* x) { solve(x); });
    return round_;
  }

  // Memory behind the space, for one vector.
  float* behind() const { return vector(round_.size + 1); }
  // The vector of the largest Ritz value, to there.
  float* ritz_vector() const {
    float* x = behind();
    form_ritz_vector(round_, basis_, padded_, x);
    return x;
  }

  // Whether B⁻¹ may have an eigenvalue of at least `level` besides that of the Ritz vector. Memory
  // behind the space is used.
  bool may_miss_eigenvalue(double level) const {
    return attnscope::may_miss_eigenvalue(padded_, n_, vector(0), ritz_vector(), level, behind(),
                                          [this](float* x) { solve(x); });
  }

  // Before `correct`: 1 − δT is factorised, T being the operator on the space and δ = 1/θ.
  void prepare() {
    delta_ = 1.0 / round_.theta;
    for (Index k = 0; k < round_.size; ++k) {
      const double beside = k > 0 ? delta_ * round_.beta[k - 1] : 0.0;
      const double before = k > 0 ? pivots_[k - 1] : 1.0;
      // The last is the Ritz vector's, which has no part in what is solved.
      pivots_[k] = std::max(1.0 - delta_ * round_.alpha[k] - beside * beside / before, 1e-4);
    }
  }

  // z = B⁻¹r to t, the solution of (1 − δB⁻¹) t = z across the Ritz vector, to `share` of z: the
  // correction that makes a Ritz vector with residual r an eigenvector, by conjugate gradients that
  // solve exactly within the Krylov space. Memory behind the space is used.
  float* correct(float* z, double share) {
    float* t = vector(round_.size + 2);
    float* direction = vector(round_.size + 3);
    float* image = vector(round_.size + 4);
    std::copy(z, z + padded_, t);
    deflate(t);
    const double small_enough = share * share * inner_product<float>(z, z, padded_);
    std::copy(t, t + padded_, direction);
    double rho = inner_product<float>(z, t, padded_);
    std::fill(t, t + padded_, 0.0f);
    for (int step = 0; step < kMostInnerSteps; ++step) {
      std::copy(direction, direction + padded_, image);
      solve(image);
      for (Index i = 0; i < padded_; ++i)
        image[i] = direction[i] - static_cast<float>(delta_) * image[i];
      const double curvature = inner_product<float>(direction, image, padded_);
      if (!(curvature > 0.0)) break;
      const double along = rho / curvature;
      add_multiple<float>(t, along, direction, padded_);
      add_multiple<float>(z, -along, image, padded_);
      if (inner_product<float>(z, z, padded_) <= small_enough) break;
      std::copy(z, z + padded_, image);
      deflate(image);
      const double next = inner_product<float>(z, image, padded_);
      scale_vector(direction, next / rho, padded_);
      add_multiple<float>(direction, 1.0, image, padded_);
      rho = next;
    }
    return t;
  }

 private:
  static constexpr int kMostInnerSteps = 12;

  // x becomes V (1 − δT)⁻¹ Vᵀx + (1 − VVᵀ) x, without its part along the Ritz vector.
  void deflate(float* x) const {
    const Index size = round_.size;
    double before[kMostLanczosSteps], after[kMostLanczosSteps];
    for (Index k = 0; k < size; ++k) {
      before[k] = after[k] = inner_product<float>(vector(k + 1), x, padded_);
    }
    remove_ritz_part(after);
    for (Index k = 1; k < size; ++k)
      after[k] += delta_ * round_.beta[k - 1] / pivots_[k - 1] * after[k - 1];
    for (Index k = 0; k < size; ++k) after[k] /= pivots_[k];
    for (Index k = size - 2; k >= 0; --k)
      after[k] += delta_ * round_.beta[k] / pivots_[k] * after[k + 1];
    remove_ritz_part(after);
    for (Index k = 0; k < size; ++k)
      add_multiple<float>(x, after[k] - before[k], vector(k + 1), padded_);
  }
  void remove_ritz_part(double* parts) const {
    double along = 0.0;
    for (Index k = 0; k < round_.size; ++k) along += parts[k] * round_.ritz[k];
    for (Index k = 0; k < round_.size; ++k) parts[k] -= along * round_.ritz[k];
  }

  Index n_, count_, padded_;
  float* factor_;
  float* inverses_;
  float* basis_;
  LanczosRound round_;
  double delta_ = 0.0;
  double pivots_[kMostLanczosSteps];
};

}  // namespace attnscope
