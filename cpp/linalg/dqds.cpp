// SPDX-License-Identifier: MIT
#include "linalg/dqds.h"

#include <algorithm>
#include <cmath>

#include "simd/lanes.h"

namespace attnscope {
namespace {

// Two vectors side by side hide the latency of the one division that each step waits for.
constexpr Index kChains = kPackWidth == 8 ? 1 : 2;
constexpr Index kWidth = kChains * kPackWidth;

// All in units of the largest row sum, which is between σ1 and 2·σ1. A squared off-diagonal entry
// this small moves σ by less than 1e-14; q never falls below kFloor; d may be this negative by
// rounding.
constexpr double kNegligible = 1e-29;
constexpr double kFloor = 1e-36;
constexpr double kRounding = 1e-29;
// q in rows outside a lane's block, whose e are 0, so that no step asks which lanes it is for. Above
// the block, a step leaves such a row as it is to rounding, starts the next row at q − τ, and adds
// nothing to the sums of inverses; below it nothing that happens is looked at.
constexpr double kOutside = 1e30;
// A block whose last value takes this many sweeps is searched for places where it falls apart.
constexpr double kPatience = 6.0;

Lanes choose(LaneMask mask, Lanes a, Lanes b) { return mask ? a : b; }

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
  alignas(64) double least[kWidth];   // smallest d of the last sweep
  alignas(64) double q0[kWidth], q1[kWidth], q2[kWidth], e0[kWidth],
      e1[kWidth];  // from the bottom up
};

Lanes& at(double* values, Index chain) {
  return *reinterpret_cast<Lanes*>(values + chain * kPackWidth);
}

class Sweeps {
 public:
  Sweeps(Index n, double* arrays, double* values) : n_(n), values_(values) {
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

  // Returns false when a lane is left over after `most` sweeps; its bottom is then >= 0.
  bool run(const double* diagonal, const double* superdiagonal, double* scale, Index most);

  bool done(Index lane) const { return state_.bottom[lane] < 0.0; }

 private:
  // What a sweep carries from row to row. With C the inverse of the block's bidiagonal matrix and c_j
  // its columns, y = |c_j|² and w = Σ_{i<j} (c_i·c_j)², so that the traces of the block's inverse and
  // of its square are Σ y and Σ (y² + 2w).
  struct Chain {
    Lanes tau, d, y, w, sum, squares, least;
    // What they were at each lane's last row: d, and the sums without that row and with it.
    Lanes last, sum_above, squares_above, whole_sum, whole_squares, whole_least;
  };

  // The arrays of a sweep, which its stores cannot reach.
  struct Arrays {
    const double *q, *e;
    double *next_q, *next_e;
    Lanes floor;  // kFloor; a maximum with a constant compiles to a compare and a blend
  };

  Chain begin(Index chain);
  static void step(Chain& chain, const Arrays& arrays, Index offset);
  void finish(const Chain& chain, Index number);
  void settle(Index lane);
  void split(Index lane, Index end);
  void unlearn(Index lane);
  static bool negligible(double e, double q, double shift) {
    return e <= kNegligible || e * std::max(e, q) <= kNegligible * (shift + q);
  }

  Index n_;
  double floor_ = kFloor;
  double* values_;
  double *q_, *e_, *next_q_, *next_e_;
  double* ends_;             // >= 0 at the last row of a block that was split off: its shift
  double *kept_q_, *kept_e_;  // blocks that were split off
  LaneState state_;
};

bool Sweeps::run(const double* diagonal, const double* superdiagonal, double* scale, Index most) {
  for (Index chain = 0; chain < kChains; ++chain) {
    const Index o = chain * kPackWidth;
    const auto row = [&](const double* a, Index i) {
      return magnitude(*reinterpret_cast<const Lanes*>(a + i * kWidth + o));
    };
    Lanes largest = row(diagonal, n_ - 1);
    for (Index i = 0; i + 1 < n_; ++i) {
      largest = larger(largest, row(diagonal, i) + row(superdiagonal, i));
    }
    at(scale, chain) = largest;
    const Lanes inverse = 1.0 / choose(largest > 0.0, largest, broadcast(1.0));
    for (Index i = 0; i <= n_; ++i) {
      const Lanes a = i < n_ ? row(diagonal, i) * inverse : broadcast(kOutside);
      const Lanes b = i + 1 < n_ ? row(superdiagonal, i) * inverse : Lanes{};
      at(q_ + i * kWidth, chain) = i < n_ ? larger(a * a, broadcast(kFloor)) : a;
      at(e_ + i * kWidth, chain) = b * b;
      at(next_q_ + i * kWidth, chain) = broadcast(kOutside);
      at(next_e_ + i * kWidth, chain) = Lanes{};
      at(ends_ + i * kWidth, chain) = broadcast(-1.0);
    }
  }
  // No row above the first adds to it.
  std::fill(e_ - kWidth, e_, 0.0);
  std::fill(next_e_ - kWidth, next_e_, 0.0);
  for (Index lane = 0; lane < kWidth; ++lane) {
    state_.bottom[lane] = static_cast<double>(n_ - 1);
    state_.top[lane] = 0.0;
    state_.shift[lane] = state_.tau[lane] = state_.failures[lane] = state_.sweeps[lane] = 0.0;
    state_.q0[lane] = state_.q1[lane] = state_.q2[lane] = 1.0;
    state_.e0[lane] = state_.e1[lane] = 0.0;
    unlearn(lane);
    for (Index i = n_ - 2; i >= 0; --i) {
      if (e_[i * kWidth + lane] > kNegligible) continue;
      split(lane, i);
      break;
    }
    settle(lane);
  }
  for (Index sweep = 0;; ++sweep) {
    // The last rows of the lanes, in rising order and each once.
    Index bottoms[kWidth];
    Index count = 0;
    for (Index lane = 0; lane < kWidth; ++lane) {
      if (done(lane)) continue;
      const auto bottom = static_cast<Index>(state_.bottom[lane]);
      Index place = count;
      while (place > 0 && bottoms[place - 1] > bottom) --place;
      if (place > 0 && bottoms[place - 1] == bottom) continue;
      for (Index k = count; k > place; --k) bottoms[k] = bottoms[k - 1];
      bottoms[place] = bottom;
      ++count;
    }
    if (count == 0) return true;
    if (sweep == most) return false;
    Chain chains[kChains];
    for (Index c = 0; c < kChains; ++c) chains[c] = begin(c);
    const Arrays arrays{q_, e_, next_q_, next_e_, broadcast(floor_)};
    Index row = 0;
    const auto all_chains = [&] {
#pragma GCC unroll 2
      for (Index c = 0; c < kChains; ++c) step(chains[c], arrays, row * kWidth + c * kPackWidth);
      ++row;
    };
    for (Index k = 0; k < count; ++k) {
      while (row < bottoms[k]) all_chains();
      const double number = static_cast<double>(row);
      for (Index c = 0; c < kChains; ++c) {
        Chain& chain = chains[c];
        const LaneMask ends = at(state_.bottom, c) == number;
        chain.last = choose(ends, chain.d, chain.last);
        chain.whole_least = choose(ends, smaller(chain.least, chain.d), chain.whole_least);
        chain.sum_above = choose(ends, chain.sum, chain.sum_above);
        chain.squares_above = choose(ends, chain.squares, chain.squares_above);
      }
      all_chains();
      for (Index c = 0; c < kChains; ++c) {
        Chain& chain = chains[c];
        const LaneMask ends = at(state_.bottom, c) == number;
        chain.whole_sum = choose(ends, chain.sum, chain.whole_sum);
        chain.whole_squares = choose(ends, chain.squares, chain.whole_squares);
      }
    }
    std::swap(q_, next_q_);
    std::swap(e_, next_e_);
    for (Index c = 0; c < kChains; ++c) {
      const Chain finished = chains[c];  // a copy, so that the loops above keep theirs in registers
      finish(finished, c);
    }
  }
}

// Chooses each lane's shift: the smaller eigenvalue of the bottom 2x2 block less the effect of the
// row above, unless that is known to be too large, or d was smallest further up: then the lower
// bound, and never less than that. After failures: smaller, then the bound, then 0.
Sweeps::Chain Sweeps::begin(Index number) {
  LaneState& s = state_;
  const Lanes zero{};
  const Lanes tiny = broadcast(kFloor);
  const Lanes q0 = at(s.q0, number), q1 = at(s.q1, number), q2 = at(s.q2, number);
  const Lanes e0 = at(s.e0, number), e1 = at(s.e1, number);
  const Lanes a = q1 + e0;
  const Lanes difference = a - q0;
  const Lanes off = q0 * e0;
  const Lanes half = 0.5 * magnitude(difference);
  const Lanes root = square_root(half * half + off);
  const Lanes smaller_end = choose(difference > 0.0, q0, a);
  const Lanes mu = smaller_end - off / (half + root + tiny);
  const Lanes share = off / ((a - mu) * (a - mu) + off + tiny);
  const Lanes correction = 1.05 * q1 * e1 * share / (larger(q2 + e1 - mu, 0.05 * (mu + q2)) + tiny);
  const Lanes lower = at(s.lower, number);
  Lanes tau = larger(mu * (1.0 - 8.0 * 1.1e-16) - correction, lower);
  tau = choose((tau >= at(s.upper, number)) | (1.02 * at(s.least, number) < q0), lower, tau);
  const Lanes failures = at(s.failures, number);
  const Lanes after_failure = choose(failures < 2.0, larger(at(s.tau, number), lower),
                                     choose(failures < 3.0, lower, zero));
  Chain chain;
  chain.tau = larger(choose(failures > 0.0, after_failure, tau), zero);
  chain.d = at(q_, number) - chain.tau;
  chain.least = broadcast(kOutside);
  chain.y = chain.w = chain.sum = chain.squares = zero;
  chain.last = chain.sum_above = chain.squares_above = zero;
  chain.whole_sum = chain.whole_squares = chain.whole_least = zero;
  return chain;
}

// One row of the sweep for every lane of a chain.
[[gnu::always_inline]] inline void Sweeps::step(Chain& c, const Arrays& arrays, Index offset) {
  const Lanes e = *reinterpret_cast<const Lanes*>(arrays.e + offset);
  const Lanes q_below = *reinterpret_cast<const Lanes*>(arrays.q + offset + kWidth);
  const Lanes q_next = larger(c.d + e, arrays.floor);
  const Lanes inverse = 1.0 / q_next;
  *reinterpret_cast<Lanes*>(arrays.next_q + offset) = q_next;
  c.least = smaller(c.least, c.d);
  // The row above's, from memory: registers are few.
  const Lanes r = *reinterpret_cast<const Lanes*>(arrays.next_e + offset - kWidth) * inverse;
  c.w = r * multiply_add(c.y, c.y, c.w);
  c.y = multiply_add(r, c.y, inverse);
  c.sum += c.y;
  c.squares += multiply_add(c.y, c.y, c.w + c.w);
  const Lanes ratio = q_below * inverse;
  c.d = multiply_add(c.d, ratio, -c.tau);
  *reinterpret_cast<Lanes*>(arrays.next_e + offset) = e * ratio;
}

void Sweeps::finish(const Chain& c, Index number) {
  LaneState& s = state_;
  const LaneMask live = at(s.bottom, number) >= 0.0;
  const LaneMask good = live & (c.whole_least >= -kRounding);
  at(s.shift, number) = choose(good, at(s.shift, number) + c.tau, at(s.shift, number));
  at(s.least, number) = choose(good, c.whole_least, at(s.least, number));
  at(s.failures, number) = choose(good, Lanes{}, at(s.failures, number) + 1.0);
  at(s.sweeps, number) += 1.0;
  // Laguerre's bound from below and a mean of the eigenvalues from above, from the traces S1 and S2 of
  // the inverse and of its square. Where the eigenvalues crowd, the difference under the root cancels.
  const auto bounds = [&](Lanes order, Lanes first, Lanes second, double* lower, double* upper) {
    const Lanes all = order * second;
    const Lanes spread = larger(all - first * first, 1e-14 * all);
    const Lanes safety = 1.0 - 1e-14 * (1.0 + all / spread);
    const Lanes bound = safety * order / (first + square_root((order - 1.0) * spread));
    at(lower, number) = choose(good, bound, at(lower, number));
    at(upper, number) = choose(good, first / second, at(upper, number));
  };
  const Lanes order = at(s.bottom, number) - at(s.top, number) + 1.0;
  bounds(order, c.whole_sum, c.whole_squares, s.lower, s.upper);
  bounds(order - 1.0, c.sum_above, c.squares_above, s.lower_next, s.upper_next);
  // A d that is negative at the very end says how much too large the shift was.
  const Lanes repaired = c.tau + c.last;
  const LaneMask usable = (repaired > 0.0) & (repaired < c.tau);
  at(s.tau, number) = choose(usable, 0.9999 * repaired, 0.25 * c.tau);

  for (Index part = 0; part < kPackWidth; ++part) {
    const Index lane = number * kPackWidth + part;
    if (!live[part]) continue;
    const auto top = static_cast<Index>(s.top[lane]);
    const auto bottom = static_cast<Index>(s.bottom[lane]);
    if (!good[part]) {
      for (Index i = 0; i < n_; ++i) {
        q_[i * kWidth + lane] = next_q_[i * kWidth + lane];
        e_[i * kWidth + lane] = next_e_[i * kWidth + lane];
      }
      continue;
    }
    if (s.sweeps[lane] >= kPatience) {
      for (Index i = bottom - 2; i >= top; --i) {
        if (e_[i * kWidth + lane] > kNegligible) continue;
        split(lane, i);
        break;
      }
    }
    settle(lane);
  }
}

// Nothing is known about the block's smallest eigenvalue.
void Sweeps::unlearn(Index lane) {
  LaneState& s = state_;
  s.lower[lane] = s.lower_next[lane] = 0.0;
  s.upper[lane] = s.upper_next[lane] = s.least[lane] = kOutside;
}

// Sets the rows of a lane's block up to `end` aside.
void Sweeps::split(Index lane, Index end) {
  LaneState& s = state_;
  for (auto i = static_cast<Index>(s.top[lane]); i <= end; ++i) {
    const Index entry = i * kWidth + lane;
    kept_q_[entry] = q_[entry];
    kept_e_[entry] = i < end ? e_[entry] : 0.0;
    q_[entry] = kOutside;
    e_[entry] = 0.0;
  }
  ends_[end * kWidth + lane] = s.shift[lane];
  s.top[lane] = static_cast<double>(end + 1);
  unlearn(lane);
}

// Takes the finished rows off the bottom of a lane, finds the next block where one is finished, and
// loads the rows that the next shift looks at.
void Sweeps::settle(Index lane) {
  LaneState& s = state_;
  double* q = q_ + lane;
  double* e = e_ + lane;
  const double* ends = ends_ + lane;
  for (;;) {
    const auto bottom = static_cast<Index>(s.bottom[lane]);
    if (bottom < 0) return;
    auto top = static_cast<Index>(s.top[lane]);
    if (top > bottom) {
      // The block that ends here was set aside.
      s.shift[lane] = ends[bottom * kWidth];
      for (top = bottom;; --top) {
        q[top * kWidth] = kept_q_[top * kWidth + lane];
        e[top * kWidth] = kept_e_[top * kWidth + lane];
        if (top == 0 || ends[(top - 1) * kWidth] >= 0.0) break;
      }
      s.top[lane] = static_cast<double>(top);
      s.failures[lane] = s.sweeps[lane] = 0.0;
      unlearn(lane);
      for (Index i = bottom - 1; i >= top; --i) {
        if (e[i * kWidth] > kNegligible) continue;
        split(lane, i);
        top = i + 1;
        break;
      }
    }
    const double last = q[bottom * kWidth];
    if (bottom == top || negligible(e[(bottom - 1) * kWidth], last, s.shift[lane])) {
      values_[bottom * kWidth + lane] = last + s.shift[lane];
      s.bottom[lane] = static_cast<double>(bottom - 1);
      q[bottom * kWidth] = kOutside;
      if (bottom > top) e[(bottom - 1) * kWidth] = 0.0;
      s.lower[lane] = s.lower_next[lane];
      s.upper[lane] = s.upper_next[lane];
      s.lower_next[lane] = 0.0;
      s.upper_next[lane] = kOutside;
      s.sweeps[lane] = 0.0;
      continue;
    }
    const bool third = bottom - 2 >= top;
    s.q0[lane] = last;
    s.q1[lane] = q[(bottom - 1) * kWidth];
    s.e0[lane] = e[(bottom - 1) * kWidth];
    s.q2[lane] = third ? q[(bottom - 2) * kWidth] : 1.0;
    s.e1[lane] = third ? e[(bottom - 2) * kWidth] : 0.0;
    return;
  }
}

}  // namespace

Index dqds_width() { return kWidth; }

void bidiagonal_singular_values(const double* diagonal, const double* superdiagonal, Index n,
                                std::span<double* const> out, DqdsWorkspace& workspace,
                                Index most_sweeps) {
  workspace.values.resize(static_cast<std::size_t>(n * kWidth));
  double* values = workspace.values.data();
  alignas(64) double scale[kWidth];
  Sweeps sweeps(n, workspace.arrays.resize(Sweeps::kArrays * Sweeps::spacing(n)), values);
  sweeps.run(diagonal, superdiagonal, scale, most_sweeps > 0 ? most_sweeps : 60 * n);
  for (std::size_t lane = 0; lane < out.size(); ++lane) {
    double* target = out[lane];
    if (target == nullptr) continue;
    if (!sweeps.done(static_cast<Index>(lane))) {
      bidiagonal_singular_values_by_bisection(diagonal + lane, superdiagonal + lane, n, kWidth,
                                              target);
      continue;
    }
    // Values leave from the bottom of the matrix, so they are nearly sorted.
    for (Index i = 0; i < n; ++i) {
      const double value =
          std::sqrt(std::max(values[i * kWidth + static_cast<Index>(lane)], 0.0)) * scale[lane];
      Index place = i;
      for (; place > 0 && target[place - 1] < value; --place) target[place] = target[place - 1];
      target[place] = value;
    }
  }
}

void tridiagonal_eigenvalues(const double* diagonal, const double* beside, Index n,
                             std::span<double* const> out, DqdsWorkspace& workspace) {
  double* roots = workspace.factors.resize(2 * n * kWidth);
  double* above = roots + n * kWidth;
  alignas(64) double shifts[kWidth];
  const auto lanes = [](const double* from) { return *reinterpret_cast<const Lanes*>(from); };
  for (Index first = 0; first < kWidth; first += kPackWidth) {
    // T + shift = BᵀB. The shift is a rounding of T, or else what makes every row dominant.
    Lanes norm{};
    Lanes lowest{};
    Lanes before{};
    for (Index i = 0; i < n; ++i) {
      const Lanes after = i + 1 < n ? magnitude(lanes(beside + i * kWidth + first)) : Lanes{};
      const Lanes centre = lanes(diagonal + i * kWidth + first);
      norm = larger(norm, magnitude(centre) + before + after);
      lowest = smaller(lowest, centre - before - after);
      before = after;
    }
    const Lanes rounding = (1e-16 * static_cast<double>(n)) * norm;
    Lanes shift = rounding;
    for (int attempt = 0; attempt < 2; ++attempt) {
      LaneMask positive = norm >= 0.0;
      Lanes offset{};
      for (Index i = 0; i < n; ++i) {
        const Lanes q = lanes(diagonal + i * kWidth + first) + shift - offset;
        positive &= (q > 0.0) | (norm == 0.0);
        const Lanes root = square_root(larger(q, Lanes{}));
        const Lanes b = i + 1 < n ? lanes(beside + i * kWidth + first) : Lanes{};
        const Lanes e = b / choose(root > 0.0, root, broadcast(1.0));
        *reinterpret_cast<Lanes*>(roots + i * kWidth + first) = root;
        *reinterpret_cast<Lanes*>(above + i * kWidth + first) = e;
        offset = e * e;
      }
      if (!any(~positive)) break;
      shift = choose(positive, shift, rounding - lowest);
    }
    for (Index lane = 0; lane < kPackWidth; ++lane) shifts[first + lane] = shift[lane];
  }
  bidiagonal_singular_values(roots, above, n, out, workspace);
  for (std::size_t lane = 0; lane < out.size(); ++lane) {
    if (out[lane] == nullptr) continue;
    for (Index i = 0; i < n; ++i) out[lane][i] = out[lane][i] * out[lane][i] - shifts[lane];
  }
}

void bidiagonal_singular_values_by_bisection(const double* diagonal, const double* superdiagonal,
                                             Index n, Index stride, double* out) {
  double scale = 0.0;
  for (Index i = 0; i < n; ++i) {
    scale = std::max(scale, std::abs(diagonal[i * stride]) +
                                (i + 1 < n ? std::abs(superdiagonal[i * stride]) : 0.0));
  }
  if (scale == 0.0) {
    std::fill(out, out + n, 0.0);
    return;
  }
  // Sturm count of BᵀB − x² from the squares of B, without forming the product.
  const auto count_below = [&](double x) {
    Index below = 0;
    double s = -x * x;
    for (Index i = 0; i < n; ++i) {
      const double a = diagonal[i * stride] / scale;
      double pivot = a * a + s;
      if (std::abs(pivot) < 1e-300) pivot = -1e-300;
      if (pivot < 0.0) ++below;
      if (i + 1 == n) break;
      const double b = superdiagonal[i * stride] / scale;
      s = b * b * (s / pivot) - x * x;
    }
    return below;
  };
  for (Index k = 0; k < n; ++k) {
    // out[k] has n − 1 − k values below it.
    double low = 0.0;
    double high = k > 0 ? out[k - 1] : 2.0;
    while (high - low > 1e-16 * (1.0 + high)) {
      const double middle = 0.5 * (low + high);
      if (middle <= low || middle >= high) break;
      (count_below(middle) > n - 1 - k ? high : low) = middle;
    }
    out[k] = high;
  }
  for (Index k = 0; k < n; ++k) out[k] *= scale;
}

}  // namespace attnscope
