// SPDX-License-Identifier: MIT
#pragma once

#include <span>

#include "simd/lanes.h"
#include "simd/memory.h"

namespace attnscope::dqds {

// Two vectors side by side hide the latency of the one division that each step waits for.
inline constexpr Index kChains = 2;
inline constexpr Index kWidth = kChains * kPackWidth;

// All in units of the largest row sum, which is between σ1 and 2·σ1. A squared off-diagonal entry
// this small moves σ by less than 1e-14; q never falls below kFloor; d may be this negative by
// rounding.
inline constexpr double kNegligible = 1e-29;
inline constexpr double kFloor = 1e-36;
inline constexpr double kRounding = 1e-29;
// A shift is at least this share of the sum of shifts, a tenth of the sum's rounding, and this
// much: see Sweeps::step.
inline constexpr double kSlackShare = 1e-17;
inline constexpr double kLeastSlack = 1e-32;
// q in rows outside a lane's block, whose e are 0, so that no step asks which lanes it is for.
// Above the block, a step leaves such a row as it is to rounding, starts the next row at q − τ, and
// adds nothing to the sums of inverses; below it nothing that happens is looked at.
inline constexpr double kOutside = 1e30;
// A block whose last value takes this many sweeps is searched for places where it falls apart.
inline constexpr double kPatience = 6.0;

inline Lanes choose(LaneMask mask, Lanes a, Lanes b) { return mask ? a : b; }

// One lane's deflation state, kept as numbers so that vectors of lanes load directly.
struct LaneState {
  alignas(64) double bottom[kWidth];  // last row of the current block, −1 when the lane is done
  alignas(64) double top[kWidth];
  alignas(64) double shift[kWidth];  // sum of the shifts so far
  alignas(64) double tau[kWidth];
  alignas(64) double failures[kWidth];
  alignas(64) double sweeps[kWidth];  // since the last value was found
  // The block's smallest eigenvalue lies between, and that of the block without its last row.
  alignas(64) double lower[kWidth], upper[kWidth], lower_next[kWidth], upper_next[kWidth];
  alignas(64) double least[kWidth];  // smallest d of the last sweep
  alignas(64) double q0[kWidth], q1[kWidth], q2[kWidth], e0[kWidth],
      e1[kWidth];  // from the bottom up
};

inline Lanes& at(double* values, Index chain) {
  return *reinterpret_cast<Lanes*>(values + chain * kPackWidth);
}

// Shifted dqds sweeps over kWidth bidiagonal matrices of one size side by side, a lane each: values
// leave a lane from the bottom of its matrix as they converge, and what is left splits where it
// falls apart.
class Sweeps {
 public:
  // An entry is negligible below `negligible`, see kNegligible.
  Sweeps(Index n, double* arrays, double* values, double negligible = kNegligible)
      : n_(n), negligible_(negligible), values_(values) {
    const Index size = spacing(n);
    q_ = arrays;
    e_ = q_ + size + kWidth;
    next_q_ = q_ + 2 * size;
    next_e_ = q_ + 3 * size + kWidth;
    ends_ = q_ + 4 * size;
    kept_q_ = ends_ + size;
    kept_e_ = kept_q_ + size;
  }

  static constexpr Index kArrays = 7;
  // Rows of a lane group and one before them, padded so that the arrays do not alias modulo 4096
  // bytes.
  static Index spacing(Index n) { return ((n + 2) * kWidth + 511) / 512 * 512 + 136; }

  // Sweeps until every lane is done, `most` times at most.
  void run(const double* diagonal, const double* superdiagonal, double* scale, Index most);

  bool done(Index lane) const { return state_.bottom[lane] < 0.0; }

 private:
  // What a sweep carries from row to row. With C the inverse of the block's bidiagonal matrix and
  // c_j its columns, y = |c_j|² and w = Σ_{i<j} (c_i·c_j)², so that the traces of the block's
  // inverse and of its square are Σ y and Σ (y² + 2w).
  struct Chain {
    Lanes tau, d, y, w, sum, squares, least;
    // What they were at each lane's last row: d, and the sums and the smallest d without that row
    // and with it.
    Lanes last, sum_above, squares_above, whole_sum, whole_squares, whole_least, least_above;
  };

  // The arrays of a sweep, which its stores cannot reach.
  struct Arrays {
    const double *q, *e;
    double *next_q, *next_e;
    Lanes floor;  // kFloor; a maximum with a constant compiles to a compare and a blend
  };

  Index chains_in_use() const;
  template <Index kUsed>
  void sweep_chains(std::span<const Index> bottoms);
  Chain begin(Index chain);
  // By how much a shift may be too large: less than the rounding of what it is added to.
  Lanes slack(Index chain) { return kSlackShare * at(state_.shift, chain) + kLeastSlack; }
  static void step(Chain& chain, const Arrays& arrays, Index offset);
  void finish(const Chain& chain, Index number);
  void settle(Index lane, bool is_new = false);
  void split(Index lane, Index end);
  void split_above(Index lane, Index from);
  void unlearn(Index lane);
  bool negligible(double e, double q, double shift) const {
    return e <= negligible_ || e * std::max(e, q) <= negligible_ * (shift + q);
  }

  Index n_;
  double negligible_;
  double floor_ = kFloor;
  double* values_;
  double *q_, *e_, *next_q_, *next_e_;
  double* ends_;              // >= 0 at the last row of a block that was split off: its shift
  double *kept_q_, *kept_e_;  // blocks that were split off
  LaneState state_{};
};

}  // namespace attnscope::dqds
