// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "linalg/eigenvalues.h"
#include "linalg/lanczos/shifted_lanczos.h"

// Block Lanczos steps, two vectors at a time, so that an eigenvalue of any multiplicity is seen
// twice. Reference: Golub, Underwood, The block Lanczos method for computing eigenvalues, 1977.
namespace attnscope {

// Blocks of two vectors in one round at most.
inline constexpr Index kMostBlocks = 24;

// Makes x a unit vector orthogonal to the `count` orthonormal ones in `basis`; the length that was
// left.
template <class Number>
double orthonormalize(const Number* basis, Index count, Index padded, Number* x) {
  remove_parts(basis, count, padded, x);
  remove_parts(basis, count, padded, x);
  const double length = std::sqrt(static_cast<double>(inner_product<Number>(x, x, padded)));
  if (length > 0.0) scale_vector(x, 1.0 / length, padded);
  return length;
}

// The memory of a Krylov space: `locked` orthonormal vectors that it is orthogonal to, and behind
// them vectors 0, 1, ... of `order` numbers.
template <class Number>
struct BlockKrylovSpace {
  Index padded;
  Index order;
  Index locked;
  Number* basis;
  Index drawn = 0;  // pseudo-random vectors so far

  Number* vector(Index k) const { return basis + (locked + k) * padded; }
  // Vector k: a new one that no symmetry is likely to share.
  void draw(Index k) {
    do {
      for (Index i = 0; i < padded; ++i) {
        vector(k)[i] = i < order ? static_cast<Number>(start_entry(i + order * drawn)) : Number{0};
      }
      ++drawn;
    } while (!(orthonormalize(basis, locked + k, padded, vector(k)) > 1e-6));
  }
};

// Where a round of steps ended: `size` vectors span the space, on which the operator has the Ritz
// values `pairs.values`, ascending. Those of index 0 and 1 here are the two largest.
struct BlockRound {
  Index size = 0;
  SymmetricEigen pairs;
  double residual[2] = {};

  double theta(Index k) const { return pairs.values[size - 1 - k]; }
  // The part of the vector of theta(k) along vector i.
  double part(Index i, Index k) const { return pairs.vectors(i, size - 1 - k); }
};

// The Ritz vectors of the `count` largest values to `ritz`.
template <class Number>
void form_ritz_vectors(const BlockRound& round, const BlockKrylovSpace<Number>& space, Index count,
                       Number* ritz) {
  std::fill(ritz, ritz + count * space.padded, Number{0});
  for (Index k = 0; k < count; ++k) {
    for (Index i = 0; i < round.size; ++i)
      add_multiple(ritz + k * space.padded, round.part(i, k), space.vector(i), space.padded);
  }
}

// Grows the space from vectors 0 and 1 by the operator that apply(x, y) applies to two vectors in
// place, until `most` <= kMostBlocks blocks are there or look(round) ends it: it is asked after
// five blocks, and says after how many more it is asked again, none where the round has gone far
// enough.
template <class Number, class Look, class Apply>
BlockRound block_lanczos_round(BlockKrylovSpace<Number>& space, Index most, Look&& look,
                               Apply&& apply) {
  Index next_look = 5;
  // Below this share of the largest entry a direction is rounding.
  constexpr double kNone = std::is_same_v<Number, float> ? 1e-6 : 1e-12;
  assert(most <= kMostBlocks);
  const Index padded = space.padded, locked = space.locked;
  using Projection =
      Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, 0, 2 * kMostBlocks, 2 * kMostBlocks>;
  Projection projection = Projection::Zero(2 * most, 2 * most);
  BlockRound round;
  for (Index j = 0; j < most; ++j) {
    Number* q[2] = {space.vector(2 * j), space.vector(2 * j + 1)};
    Number* w[2] = {space.vector(2 * j + 2), space.vector(2 * j + 3)};
    for (int k = 0; k < 2; ++k) std::copy(q[k], q[k] + padded, w[k]);
    apply(w[0], w[1]);
    projection(2 * j, 2 * j) = inner_product<Number>(q[0], w[0], padded);
    projection(2 * j + 1, 2 * j) = projection(2 * j, 2 * j + 1) =
        inner_product<Number>(q[1], w[0], padded);
    projection(2 * j + 1, 2 * j + 1) = inner_product<Number>(q[1], w[1], padded);
    // The block of the next two: upper triangular.
    const double none = kNone * projection(0, 0);
    double beta[2][2] = {};
    beta[0][0] = orthonormalize(space.basis, locked + 2 * j + 2, padded, w[0]);
    if (!(beta[0][0] > none)) {
      beta[0][0] = 0.0;
      space.draw(2 * j + 2);
    }
    remove_parts(space.basis, locked + 2 * j + 2, padded, w[1]);
    beta[0][1] = inner_product<Number>(w[0], w[1], padded);
    beta[1][1] = orthonormalize(space.basis, locked + 2 * j + 3, padded, w[1]);
    if (!(beta[1][1] > none)) {
      beta[1][1] = 0.0;
      space.draw(2 * j + 3);
    }

    const Index size = 2 * j + 2;
    const bool full = j + 1 == most;
    const bool closed = beta[0][0] == 0.0 && beta[1][1] == 0.0;
    if (full || (closed && j > 0) || j + 1 == next_look) {
      round.size = size;
      round.pairs = symmetric_eigen(projection.topLeftCorner(size, size));
      for (Index k = 0; k < 2; ++k) {
        const double last = round.part(size - 1, k);
        round.residual[k] =
            std::hypot(beta[0][0] * round.part(size - 2, k) + beta[0][1] * last, beta[1][1] * last);
      }
      const Index further = look(round);
      if (full || further == 0) return round;
      next_look = j + 1 + further;
    }
    if (j + 1 < most) {
      projection(2 * j + 2, 2 * j) = projection(2 * j, 2 * j + 2) = beta[0][0];
      projection(2 * j + 2, 2 * j + 1) = projection(2 * j + 1, 2 * j + 2) = beta[0][1];
      projection(2 * j + 3, 2 * j + 1) = projection(2 * j + 1, 2 * j + 3) = beta[1][1];
    }
  }
  return round;
}

}  // namespace attnscope
