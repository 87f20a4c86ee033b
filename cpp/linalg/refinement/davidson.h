// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "matrix/padded_vectors.h"

// Davidson's steps to the smallest eigenvalue of a symmetric matrix, from a vector that is nearly
// its own.
namespace attnscope {

// Steps at most, and with that the size of the subspace.
inline constexpr Index kMostDavidsonSteps = 12;

// The smallest eigenvalue μ of a small symmetric matrix H whose first diagonal entry is close to
// it, from the equation of its eigenvector (1, s): (G − μ) s = −h with H = (η, hᵀ; h, G), and μ as
// the Rayleigh quotient of that vector, which converges cubically. `vector` begins at (1, 0, ...).
struct SmallMatrix {
  double entry[kMostDavidsonSteps][kMostDavidsonSteps];

  // The eigenvalue, and its unit vector to `vector` [size]; NaN where G − μ is not positive
  // definite.
  double smallest(Index size, double* vector) const {
    double mu = entry[0][0];
    vector[0] = 1.0;
    for (int round = 0; round < 3 && size > 1; ++round) {
      double factor[kMostDavidsonSteps][kMostDavidsonSteps];
      for (Index i = 1; i < size; ++i) {
        for (Index j = 1; j <= i; ++j) {
          double rest = entry[i][j] - (i == j ? mu : 0.0);
          for (Index k = 1; k < j; ++k) rest -= factor[i][k] * factor[j][k];
          if (i == j && !(rest > 0.0)) return std::nan("");
          factor[i][j] = i == j ? std::sqrt(rest) : rest / factor[j][j];
        }
      }
      for (Index i = 1; i < size; ++i) {
        double rest = -entry[i][0];
        for (Index k = 1; k < i; ++k) rest -= factor[i][k] * vector[k];
        vector[i] = rest / factor[i][i];
      }
      for (Index i = size - 1; i > 0; --i) {
        double rest = vector[i];
        for (Index k = i + 1; k < size; ++k) rest -= factor[k][i] * vector[k];
        vector[i] = rest / factor[i][i];
      }
      double quotient = 0.0, square = 0.0;
      vector[0] = 1.0;
      for (Index i = 0; i < size; ++i) {
        square += vector[i] * vector[i];
        for (Index j = 0; j < size; ++j)
          quotient += vector[i] * entry[std::max(i, j)][std::min(i, j)] * vector[j];
      }
      mu = quotient / square;
    }
    double square = 0.0;
    for (Index i = 0; i < size; ++i) square += vector[i] * vector[i];
    for (Index i = 0; i < size; ++i) vector[i] /= std::sqrt(square);
    return mu;
  }
};

// Where the steps ended.
struct DavidsonEnd {
  double value = 0.0;
  bool converged = false;
};

// Grows a subspace from the unit vector basis + padded, orthogonal to the unit null vector at
// `basis`: `multiply(x, y)` sets y = A x; `correct(r, θ)` turns the residual r of the Ritz value θ
// into the next vector of the subspace and returns how far θ may be from an eigenvalue. Ends when
// that is at most allowed(θ). `basis` holds kMostDavidsonSteps + 2 vectors, `images`
// kMostDavidsonSteps.
//
// With σ below the smallest eigenvalue but for the null vector's there is an eigenvalue λ with
// (λ − θ)² <= rᵀ(A − σ)⁻¹r · (λ − σ). References: Davidson, The iterative calculation of a few of
// the lowest eigenvalues, 1975; Parlett, The Symmetric Eigenvalue Problem, 1998, chapter 11.
template <class Multiply, class Correct, class Allowed>
DavidsonEnd davidson_steps(Index padded, double sigma, double* basis, double* images,
                           Multiply&& multiply, Correct&& correct, Allowed&& allowed) {
  SmallMatrix projected;
  DavidsonEnd end;
  double ritz[kMostDavidsonSteps];
  for (Index k = 0; k < kMostDavidsonSteps; ++k) {
    double* image = images + k * padded;
    multiply(basis + (k + 1) * padded, image);
    for (Index i = 0; i <= k; ++i)
      projected.entry[k][i] = inner_product<double>(basis + (i + 1) * padded, image, padded);
    end.value = projected.smallest(k + 1, ritz);
    if (!(end.value > sigma)) return end;
    double* next = basis + (k + 2) * padded;
    std::fill(next, next + padded, 0.0);
    for (Index j = 0; j <= k; ++j) {
      add_multiple<double>(next, ritz[j], images + j * padded, padded);
      add_multiple<double>(next, -end.value * ritz[j], basis + (j + 1) * padded, padded);
    }
    end.converged = correct(next, end.value) <= allowed(end.value);
    if (end.converged) return end;
    for (int time = 0; time < 2; ++time) {
      remove_parts(basis, k + 2, padded, next);
      const double length = std::sqrt(inner_product(next, next, padded));
      if (!(length > 0.0)) return end;
      scale_vector(next, 1.0 / length, padded);
    }
  }
  return end;
}

}  // namespace attnscope
