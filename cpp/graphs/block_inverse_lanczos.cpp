// SPDX-License-Identifier: MIT
#include "graphs/block_inverse_lanczos.h"

#include <algorithm>
#include <cmath>

#include "linalg/lanczos/block_lanczos.h"
#include "linalg/panel_cholesky.h"

namespace attnscope {
namespace {

constexpr int kMostRounds = 8;
// Blocks in one round at most; more cost more than a new factor.
constexpr Index kMostInverseBlocks = 16;
// Blocks from one look at convergence to the next.
constexpr Index kLook = 3;
// The null vector and the vector of μ2 stand before the blocks, two Ritz vectors behind them.
constexpr Index kBasis = 2 * (kMostInverseBlocks + 1) + 4;

}  // namespace

std::optional<EigenvaluePair> block_inverse_lanczos(const SimpleLaplacian& laplacian,
                                                    const std::vector<Index>& one_piece,
                                                    BlockInverseLanczosWorkspace& workspace) {
  const Index m = laplacian.order();
  const Index count = panels_of(m);
  const Index padded = count * kPanel;
  const auto nodes = static_cast<double>(m);
  if (m < 12) return std::nullopt;
  double* panels = workspace.matrix.resize(panel_offset(count));
  double* inverses = workspace.inverses.resize(panel_inverses(m));
  double* basis = workspace.basis.resize(kBasis * padded);
  std::fill(basis, basis + kBasis * padded, 0.0);
  std::fill(basis, basis + m, 1.0 / std::sqrt(nodes));
  double* lifted = basis + padded;  // the vector of μ2, once it is known
  BlockKrylovSpace<double> space{padded, m, 1, basis};
  double mu2 = 0.0;
  if (!one_piece.empty()) {
    write_piece_vector(one_piece, m, lifted);
    space.locked = 2;
  }
  space.draw(0);
  space.draw(1);
  double lift = 2.0 * nodes;
  double sigma = 0.0, below = 0.0;
  for (int attempt = 0; attempt < kMostRounds; ++attempt) {
    const bool seeks_third = space.locked == 2;  // μ3 is what is left to find
    laplacian.fill_panels<double>(m, seeks_third ? lifted : nullptr, lift, sigma, panels);
    if (!panel_factorize(panels, count, inverses)) {
      if (sigma == below) return std::nullopt;
      sigma = sigma - below > 1e-9 * nodes ? below + 0.25 * (sigma - below) : below;
      continue;
    }
    below = sigma;
    const auto value = [&](double theta) { return sigma + 1.0 / theta; };
    const auto allowed = [&](double mu) { return std::max(1e-13 * mu, 2e-16 * nodes); };
    // How far an eigenvalue can be from its Ritz value, the gap being that to the next one, in
    // units of μ.
    const auto close = [&](const BlockRound& at, int k) {
      const double residual = at.residual[k], apart = at.theta(0) - at.theta(1);
      const double beyond = at.theta(k) - at.theta(2);
      const double joint = std::hypot(at.residual[0], at.residual[1]);
      const double next = k == 0 ? apart : std::min(apart, beyond);
      double bound = residual;
      if (residual < 0.1 * next) bound = std::min(bound, residual * residual / next);
      if (joint < 0.1 * beyond) bound = std::min(bound, joint * joint / beyond);
      bound += 0x1p-50 * at.theta(0);  // rounding of the largest reaches all
      return bound <= allowed(value(at.theta(k))) * at.theta(k) * at.theta(k);
    };
    // An eigenvalue closer by than that may have gone unseen: were it as close as the residual, the
    // error would be the residual's size.
    const auto largest_residual = [&](double theta) {
      return std::max(1e-10 * value(theta), 1e-14 * nodes) * theta * theta;
    };
    const auto is_accurate = [&](const BlockRound& at, int k) {
      return close(at, k) && at.residual[k] <= largest_residual(at.theta(k));
    };
    // A vector that is wrong by ε lifts the others by ε² of the lift. The factor behind it tells
    // that no other eigenvalue lies below the shift, so that the gap is as it seems.
    const auto is_lockable = [&](const BlockRound& at) {
      const double apart = at.theta(0) - at.theta(1);
      const double wrong = at.residual[0] / apart;
      const double rise = 4.0 * (value(at.theta(1)) - value(at.theta(0)));
      return apart > 1e-3 * at.theta(0) && close(at, 0) &&
             rise * wrong * wrong < 0.1 * allowed(value(at.theta(1)));
    };
    // Residuals fall by the same factor from look to look; a new factor costs so many steps.
    const int last = seeks_third ? 0 : 1;
    const double patience = nodes / 40.0 + 5.0;
    double before = 0.0;
    const auto look = [&](const BlockRound& at) -> Index {
      if (is_accurate(at, 0) && (seeks_third || is_accurate(at, 1))) return 0;
      const double rest = at.residual[last], fall = std::log(before / rest);
      const bool crawls =
          before > 0.0 &&
          kLook * std::log(rest / largest_residual(at.theta(last))) > patience * fall;
      before = rest;
      return crawls ? 0 : kLook;
    };
    const Index most = std::min(kMostInverseBlocks, (m - space.locked) / 2 - 1);
    const BlockRound round = block_lanczos_round(space, most, look, [&](double* x, double* y) {
      panel_solve<2, double>(panels, count, inverses, {x, y});
    });
    // Behind the blocks first, since each is a sum of all of them.
    double* ritz = space.vector(round.size);
    form_ritz_vectors(round, space, 3, ritz);
    std::copy(ritz, ritz + 3 * padded, space.vector(0));
    if (!(round.theta(0) > 0.0) || !(round.theta(1) > 0.0)) return std::nullopt;
    if (seeks_third) {
      if (is_accurate(round, 0)) {
        return EigenvaluePair{mu2, value(round.theta(0))};
      }
      sigma += 1.0 / (round.theta(0) + 1.5 * round.residual[0]);
      continue;
    }
    mu2 = value(round.theta(0));
    if (is_accurate(round, 0) && is_accurate(round, 1)) {
      return EigenvaluePair{mu2, value(round.theta(1))};
    }
    if (is_lockable(round)) {
      lift = 4.0 * (value(round.theta(1)) - mu2);
      sigma += 1.0 / (round.theta(1) + 1.5 * round.residual[1]);
      // Vector 0 becomes the lifted one, and 1 and 2 the start, by one place of the basis.
      space.locked = 2;
      continue;
    }
    sigma += 1.0 / (round.theta(0) + 1.5 * round.residual[0]);
  }
  return std::nullopt;
}

}  // namespace attnscope
