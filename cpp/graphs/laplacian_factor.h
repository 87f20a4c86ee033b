// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "graphs/simple_laplacian.h"
#include "simd/memory.h"

namespace attnscope {

struct LaplacianFactorWorkspace {
  std::vector<Index> neighbours;
  std::vector<Index> starts;
  AlignedBuffer panels;
  AlignedBuffer inverses;
};

// Writes an order of a graph's nodes whose last ones have few neighbours and do not touch each
// other, and returns how many come before them; all of them, and no order, where few are of that
// kind.
Index order_for_elimination(const SimpleLaplacian& laplacian, std::vector<Index>& order);

// A float32 factor of B = L − σ on the complement of the null vector, and of one that is lifted.
//
// While σ is 0, the nodes from `core` on, which do not touch each other, are eliminated first: each
// joins its neighbours two by two, and the Laplacian of that weighted graph on the core is what is
// factorized densely. Where attention is sparse that halves the cost. Reference: Duff, Erisman,
// Reid, Direct Methods for Sparse Matrices, 1986, chapter 7 (least degree first).
class LaplacianFactor {
 public:
  LaplacianFactor(const SimpleLaplacian& laplacian, Index core,
                  LaplacianFactorWorkspace& workspace);

  // How long vectors are.
  Index padded() const;
  // With a vector whose eigenvalue is moved up by `lift`, or null: while σ is 0 the one that tells
  // two pieces apart. False where B is not positive definite.
  bool factorize(const float* lifted, double lift, double sigma);
  // B⁻¹ of one vector or of two at once, in place, but for the parts along the null vector and the
  // lifted one.
  void solve(float* x) const;
  void solve(float* x, float* y) const;

 private:
  template <Index kCount>
  void solve_together(float* const (&vectors)[kCount]) const;

  const SimpleLaplacian& laplacian_;
  LaplacianFactorWorkspace& workspace_;
  Index core_;
  Index dense_ = 0;  // rows of the dense factor: the core's or all
};

}  // namespace attnscope
