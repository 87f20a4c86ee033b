// SPDX-License-Identifier: MIT
#include "graphs/block_inverse_lanczos.h"

#include <algorithm>
#include <cmath>

#include "linalg/eigenvalues.h"
#include "linalg/panel_cholesky.h"
#include "linalg/shifted_lanczos.h"

namespace attnscope {
namespace {

// Blocks of two vectors in one round at most.
constexpr Index kMostBlocks = 16;
constexpr int kMostRounds = 8;
// Steps from one look at convergence to the next.
constexpr Index kLook = 3;
// The null vector and the vector of μ2 stand before the blocks, two Ritz vectors behind them.
constexpr Index kBasis = 2 * (kMostBlocks + 1) + 4;

// The panels of L + 11ᵀ + lift·vvᵀ − σ: 1 where H has no edge, 0 where it has, degrees plus 1 on
// the diagonal; v may be null.
void fill_panels(const LevelGraph& graph, const double* v, double lift, double sigma,
                 double* panels) {
  const Index m = static_cast<Index>(graph.nodes.size());
  const Index count = panels_of(m);
  const bool all = m == graph.level.n;  // nodes are all rows in order
  for (Index s = 0; s < count; ++s) {
    const Index first = s * kPanel;
    const Index inside = std::min(kPanel, m - first);
    double* row = panels + panel_offset(s);
    for (Index k = 0; k < (s + 1) * kPanel; ++k, row += kPanel) {
      std::fill(row + inside, row + kPanel, 0.0);
      if (k >= m) {
        std::fill(row, row + inside, 0.0);
        continue;
      }
      const Level* level = graph.level.row(graph.nodes[k]);
      if (all) {
        for (Index c = 0; c < inside; ++c) row[c] = level[first + c] > graph.above ? 0.0 : 1.0;
      } else {
        const Index* column = graph.nodes.data() + first;
        for (Index c = 0; c < inside; ++c) row[c] = level[column[c]] > graph.above ? 0.0 : 1.0;
      }
      if (v == nullptr) continue;
      const double factor = lift * v[k];
      for (Index c = 0; c < inside; ++c) row[c] += factor * v[first + c];
    }
  }
  for (Index i = 0; i < count * kPanel; ++i) {
    double& entry = panels[panel_entry(i, i)];
    entry =
        i < m ? entry + graph.degree[i] - sigma : 1.0;  // no node touches itself: entry is 1 + vv
  }
}

// Makes x a unit vector orthogonal to the `count` orthonormal ones in `basis`; the length that was
// left.
double orthonormalize(const double* basis, Index count, Index padded, double* x) {
  remove_parts(basis, count, padded, x);
  remove_parts(basis, count, padded, x);
  const double length = std::sqrt(inner_product(x, x, padded));
  if (length > 0.0) scale_vector(x, 1.0 / length, padded);
  return length;
}

struct Steps {
  Index padded;
  Index order;   // nodes
  Index locked;  // vectors before the blocks
  double* basis;
  Index drawn = 0;  // pseudo-random vectors so far

  double* vector(Index k) const { return basis + (locked + k) * padded; }
  // Vector k: a new one that no symmetry is likely to share.
  void draw(Index k) {
    do {
      for (Index i = 0; i < padded; ++i) {
        vector(k)[i] = i < order ? start_entry(i + order * drawn) : 0.0;
      }
      ++drawn;
    } while (!(orthonormalize(basis, locked + k, padded, vector(k)) > 1e-6));
  }
};

// Where a round ended: the two largest Ritz values, their residuals and the third.
struct PairRound {
  double theta[2] = {};
  double residual[2] = {};
  double third = 0.0;
};

// Block Lanczos steps from vectors 0 and 1 until enough(round) or the room is full; the three Ritz
// vectors of the largest values are then in vectors 0 to 2.
template <class Enough, class Apply>
PairRound block_round(Steps& steps, Enough&& enough, Apply&& apply) {
  using Matrix =
      Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, 0, 2 * kMostBlocks, 2 * kMostBlocks>;
  const Index padded = steps.padded;
  const Index most = std::min(kMostBlocks, (steps.order - steps.locked) / 2 - 1);
  Matrix projection = Matrix::Zero(2 * most, 2 * most);
  PairRound round;
  for (Index j = 0; j < most; ++j) {
    double* q[2] = {steps.vector(2 * j), steps.vector(2 * j + 1)};
    double* w[2] = {steps.vector(2 * j + 2), steps.vector(2 * j + 3)};
    for (int k = 0; k < 2; ++k) {
      std::copy(q[k], q[k] + padded, w[k]);
      apply(w[k]);
    }
    projection(2 * j, 2 * j) = inner_product(q[0], w[0], padded);
    projection(2 * j + 1, 2 * j) = projection(2 * j, 2 * j + 1) = inner_product(q[1], w[0], padded);
    projection(2 * j + 1, 2 * j + 1) = inner_product(q[1], w[1], padded);
    // The block of the next two: upper triangular.
    const double none = 1e-12 * projection(0, 0);
    double beta[2][2] = {};
    beta[0][0] = orthonormalize(steps.basis, steps.locked + 2 * j + 2, padded, w[0]);
    if (!(beta[0][0] > none)) {
      beta[0][0] = 0.0;
      steps.draw(2 * j + 2);
    }
    remove_parts(steps.basis, steps.locked + 2 * j + 2, padded, w[1]);
    beta[0][1] = inner_product(w[0], w[1], padded);
    beta[1][1] = orthonormalize(steps.basis, steps.locked + 2 * j + 3, padded, w[1]);
    if (!(beta[1][1] > none)) {
      beta[1][1] = 0.0;
      steps.draw(2 * j + 3);
    }

    const Index size = 2 * j + 2;
    const bool full = j + 1 == most;
    const bool closed = beta[0][0] == 0.0 && beta[1][1] == 0.0;
    if (full || (closed && j > 0) || (j >= 4 && (j - 4) % kLook == 0)) {
      const SymmetricEigen pairs = symmetric_eigen(projection.topLeftCorner(size, size));
      const Eigen::MatrixXd& s = pairs.vectors;
      for (Index k = 0; k < 2; ++k) {
        const Index at = size - 1 - k;
        round.theta[k] = pairs.values[at];
        round.residual[k] = std::hypot(beta[0][0] * s(size - 2, at) + beta[0][1] * s(size - 1, at),
                                       beta[1][1] * s(size - 1, at));
      }
      round.third = pairs.values[size - 3];
      if (full || enough(round)) {
        // Behind the blocks first, since each is a sum of all of them.
        double* ritz = steps.vector(size);
        std::fill(ritz, ritz + 3 * padded, 0.0);
        for (Index k = 0; k < 3; ++k) {
          for (Index i = 0; i < size; ++i) {
            add_multiple(ritz + k * padded, s(i, size - 1 - k), steps.vector(i), padded);
          }
        }
        std::copy(ritz, ritz + 3 * padded, steps.vector(0));
        return round;
      }
    }
    if (j + 1 < most) {
      projection(2 * j + 2, 2 * j) = projection(2 * j, 2 * j + 2) = beta[0][0];
      projection(2 * j + 2, 2 * j + 1) = projection(2 * j + 1, 2 * j + 2) = beta[0][1];
      projection(2 * j + 3, 2 * j + 1) = projection(2 * j + 1, 2 * j + 3) = beta[1][1];
    }
  }
  return round;
}

}  // namespace

bool block_inverse_lanczos(const LevelGraph& graph, BlockInverseLanczosWorkspace& workspace,
                           double* mu2, double* mu3) {
  const Index m = static_cast<Index>(graph.nodes.size());
  const Index count = panels_of(m);
  const Index padded = count * kPanel;
  const auto nodes = static_cast<double>(m);
  if (m < 12) return false;
  double* panels = workspace.matrix.resize(panel_offset(count));
  double* inverses = workspace.inverses.resize(panel_inverses(m));
  double* basis = workspace.basis.resize(kBasis * padded);
  std::fill(basis, basis + kBasis * padded, 0.0);
  std::fill(basis, basis + m, 1.0 / std::sqrt(nodes));
  double* lifted = basis + padded;  // the vector of μ2, once it is known
  Steps steps{padded, m, 1, basis};
  const bool in_two = !graph.one_piece.empty();
  if (in_two) {
    const auto piece = static_cast<double>(graph.one_piece.size());
    const double inside = std::sqrt((nodes - piece) / (nodes * piece));
    std::fill(lifted, lifted + m, -std::sqrt(piece / (nodes * (nodes - piece))));
    for (const Index i : graph.one_piece) lifted[i] = inside;
    *mu2 = 0.0;
    steps.locked = 2;
  }
  steps.draw(0);
  steps.draw(1);
  double lift = 2.0 * nodes;
  double sigma = 0.0, below = 0.0;
  for (int attempt = 0; attempt < kMostRounds; ++attempt) {
    const bool seeks_third = steps.locked == 2;  // μ3 is what is left to find
    fill_panels(graph, seeks_third ? lifted : nullptr, lift, sigma, panels);
    if (!panel_factorize(panels, count, inverses)) {
      if (sigma == below) return false;
      sigma = sigma - below > 1e-9 * nodes ? below + 0.25 * (sigma - below) : below;
      continue;
    }
    below = sigma;
    const auto value = [&](double theta) { return sigma + 1.0 / theta; };
    const auto allowed = [&](double mu) { return std::max(1e-13 * mu, 2e-16 * nodes); };
    // How far an eigenvalue can be from its Ritz value, the gap being that to the next one, in
    // units of μ.
    const auto close = [&](const PairRound& at, int k) {
      const double residual = at.residual[k], apart = at.theta[0] - at.theta[1];
      const double beyond = at.theta[k] - at.third;
      const double joint = std::hypot(at.residual[0], at.residual[1]);
      const double next = k == 0 ? apart : std::min(apart, beyond);
      double bound = residual;
      if (residual < 0.1 * next) bound = std::min(bound, residual * residual / next);
      if (joint < 0.1 * beyond) bound = std::min(bound, joint * joint / beyond);
      bound += 0x1p-50 * at.theta[0];  // rounding of the largest reaches all
      return bound <= allowed(value(at.theta[k])) * at.theta[k] * at.theta[k];
    };
    // An eigenvalue closer by than that may have gone unseen: were it as close as the residual, the
    // error would be the residual's size.
    const auto largest_residual = [&](double theta) {
      return std::max(1e-10 * value(theta), 1e-14 * nodes) * theta * theta;
    };
    const auto is_accurate = [&](const PairRound& at, int k) {
      return close(at, k) && at.residual[k] <= largest_residual(at.theta[k]);
    };
    // A vector that is wrong by ε lifts the others by ε² of the lift. The factor behind it tells
    // that no other eigenvalue lies below the shift, so that the gap is as it seems.
    const auto is_lockable = [&](const PairRound& at) {
      const double apart = at.theta[0] - at.theta[1];
      const double wrong = at.residual[0] / apart;
      const double rise = 4.0 * (value(at.theta[1]) - value(at.theta[0]));
      return apart > 1e-3 * at.theta[0] && close(at, 0) &&
             rise * wrong * wrong < 0.1 * allowed(value(at.theta[1]));
    };
    // Residuals fall by the same factor from look to look; a new factor costs so many steps.
    const int last = seeks_third ? 0 : 1;
    const double patience = nodes / 40.0 + 5.0;
    double before = 0.0;
    const PairRound round = block_round(
        steps,
        [&](const PairRound& at) {
          if (is_accurate(at, 0) && (seeks_third || is_accurate(at, 1))) return true;
          const double rest = at.residual[last], fall = std::log(before / rest);
          const bool crawls =
              before > 0.0 &&
              kLook * std::log(rest / largest_residual(at.theta[last])) > patience * fall;
          before = rest;
          return crawls;
        },
        [&](double* x) { panel_solve(panels, count, inverses, x); });
    if (!(round.theta[0] > 0.0) || !(round.theta[1] > 0.0)) return false;
    if (seeks_third) {
      if (is_accurate(round, 0)) {
        *mu3 = value(round.theta[0]);
        return true;
      }
      sigma += 1.0 / (round.theta[0] + 1.5 * round.residual[0]);
      continue;
    }
    *mu2 = value(round.theta[0]);
    if (is_accurate(round, 0) && is_accurate(round, 1)) {
      *mu3 = value(round.theta[1]);
      return true;
    }
    if (is_lockable(round)) {
      lift = 4.0 * (value(round.theta[1]) - *mu2);
      sigma += 1.0 / (round.theta[1] + 1.5 * round.residual[1]);
      // Vector 0 becomes the lifted one, and 1 and 2 the start, by one place of the basis.
      steps.locked = 2;
      continue;
    }
    sigma += 1.0 / (round.theta[0] + 1.5 * round.residual[0]);
  }
  return false;
}

}  // namespace attnscope
