// SPDX-License-Identifier: MIT
#include "kernels/base/dqds.h"

#include <algorithm>
#include <cmath>

#include "kernels/base/lanes.h"

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

Lanes choose(LaneMask mask, Lanes a, Lanes b) { return mask ? a : b; }

// One lane's deflation state, kept as numbers so that vectors of lanes load directly.
struct LaneState {
  alignas(64) double bottom[kWidth];  // last row of the current block, −1 when the lane is done
  alignas(64) double top[kWidth];
  alignas(64) double shift[kWidth];  // sum of the shifts so far
  alignas(64) double tau[kWidth];
  alignas(64) double failures[kWidth];
  alignas(64) double newton[kWidth];  // 1/trace of the inverse: no eigenvalue lies below
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
    e_ = q_ + size;
    next_q_ = e_ + size;
    next_e_ = next_q_ + size;
    ends_ = next_e_ + size;
  }

  // Rows of a lane group, padded so that the arrays do not alias modulo 4096 bytes.
  static Index spacing(Index n) { return ((n + 1) * kWidth + 511) / 512 * 512 + 136; }

  // Returns false when a lane is left over after `most` sweeps; its bottom is then >= 0.
  bool run(const double* diagonal, const double* superdiagonal, double* scale, Index most);

  bool done(Index lane) const { return state_.bottom[lane] < 0.0; }

 private:
  struct Chain {
    Lanes d, least, least_e, y, sum, e_above, q, tau, last, top, bottom;
  };

  Chain begin(Index chain);
  template <bool kMasked>
  void step(Chain& chain, Index row, Index offset);
  void finish(Chain& chain, Index number);
  void settle(Index lane);
  static bool negligible(double e, double q, double shift) {
    return e <= kNegligible || e * std::max(e, q) <= kNegligible * (shift + q);
  }

  Index n_;
  double* values_;
  double *q_, *e_, *next_q_, *next_e_;
  double* ends_;  // >= 0 at the last row of a block that was split off: its shift
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
      const Lanes a = i < n_ ? row(diagonal, i) * inverse : broadcast(1.0);
      const Lanes b = i + 1 < n_ ? row(superdiagonal, i) * inverse : Lanes{};
      at(q_ + i * kWidth, chain) = larger(a * a, broadcast(kFloor));
      at(e_ + i * kWidth, chain) = b * b;
      at(next_q_ + i * kWidth, chain) = broadcast(1.0);
      at(next_e_ + i * kWidth, chain) = Lanes{};
      at(ends_ + i * kWidth, chain) = broadcast(-1.0);
    }
  }
  for (Index lane = 0; lane < kWidth; ++lane) {
    state_.bottom[lane] = static_cast<double>(n_ - 1);
    state_.top[lane] = static_cast<double>(n_);  // above the bottom: settle looks for the block
    state_.shift[lane] = state_.tau[lane] = state_.failures[lane] = state_.newton[lane] = 0.0;
    state_.q0[lane] = state_.q1[lane] = state_.q2[lane] = 1.0;
    state_.e0[lane] = state_.e1[lane] = 0.0;
    state_.least[lane] = 1e30;
    settle(lane);
  }
  for (Index sweep = 0;; ++sweep) {
    Index last = -1;
    Index lowest_top = 0;
    Index first_bottom = n_;
    for (Index lane = 0; lane < kWidth; ++lane) {
      if (done(lane)) continue;
      const auto bottom = static_cast<Index>(state_.bottom[lane]);
      last = std::max(last, bottom);
      first_bottom = std::min(first_bottom, bottom);
      lowest_top = std::max(lowest_top, static_cast<Index>(state_.top[lane]));
    }
    if (last < 0) return true;
    if (sweep == most) return false;
    Chain chains[kChains];
    for (Index c = 0; c < kChains; ++c) chains[c] = begin(c);
    const auto pass = [&]<bool kMasked>(Index from, Index to) {
      for (Index i = from; i < to; ++i) {
#pragma GCC unroll 2
        for (Index c = 0; c < kChains; ++c)
          step<kMasked>(chains[c], i, i * kWidth + c * kPackWidth);
      }
    };
    // Between the lowest top and the first bottom every live lane is inside its block.
    const Index inner = std::min(lowest_top + 1, last + 1);
    const Index outer = std::max(inner, first_bottom);
    pass.template operator()<true>(0, inner);
    pass.template operator()<false>(inner, outer);
    pass.template operator()<true>(outer, last + 1);
    std::swap(q_, next_q_);
    std::swap(e_, next_e_);
    for (Index c = 0; c < kChains; ++c) finish(chains[c], c);
  }
}

// Chooses each lane's shift: the smaller eigenvalue of the bottom 2x2 block less the effect of the
// row above, never below the Newton bound; half of the last smallest d where that was not at the
// bottom (the smallest eigenvalue is then still further up). After failures: smaller, then the safe
// bound, then 0.
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
  const Lanes newton = 0.9999 * at(s.newton, number);
  Lanes tau = larger(mu * (1.0 - 8.0 * 1.1e-16) - correction, newton);
  const Lanes least = at(s.least, number);
  tau = choose(1.02 * least < q0, larger(newton, smaller(tau, 0.5 * least)), tau);
  const Lanes failures = at(s.failures, number);
  const Lanes after_failure = choose(failures < 2.0, larger(at(s.tau, number), newton),
                                     choose(failures < 3.0, newton, zero));
  Chain chain;
  chain.tau = larger(choose(failures > 0.0, after_failure, tau), zero);
  chain.d = broadcast(1.0);
  chain.least = broadcast(1e30);
  chain.least_e = broadcast(1e30);
  chain.y = chain.sum = chain.e_above = chain.last = zero;
  chain.top = at(s.top, number);
  chain.bottom = at(s.bottom, number);
  chain.q = at(q_, number);
  return chain;
}

// One row of the sweep for every lane of a chain. Rows outside a lane's block pass through
// unchanged.
template <bool kMasked>
[[gnu::always_inline]] inline void Sweeps::step(Chain& c, Index row, Index offset) {
  const Lanes e = *reinterpret_cast<Lanes*>(e_ + offset);
  const Lanes q_below = *reinterpret_cast<Lanes*>(q_ + offset + kWidth);
  const double number = static_cast<double>(row);
  LaneMask active = {};
  if constexpr (kMasked) {
    const LaneMask starts = c.top == number;
    active = (c.top <= number) & (c.bottom >= number);
    c.d = choose(starts, c.q - c.tau, c.d);
    c.e_above = choose(starts, Lanes{}, c.e_above);
    c.last = choose(c.bottom == number, c.d, c.last);
  }
  const Lanes q_next = larger(c.d + e, broadcast(kFloor));
  const Lanes inverse = 1.0 / q_next;
  const Lanes e_next = e * (q_below * inverse);
  const Lanes d_next = (c.d * q_below) * inverse - c.tau;
  const Lanes y = (1.0 + c.e_above * c.y) * inverse;
  if constexpr (kMasked) {
    c.least = choose(active, smaller(c.least, c.d), c.least);
    c.sum = choose(active, c.sum + y, c.sum);
    // the bottom row's own e is 0 and says nothing about a split
    c.least_e = choose(active & (c.bottom > number), smaller(c.least_e, e_next), c.least_e);
    c.y = choose(active, y, c.y);
    *reinterpret_cast<Lanes*>(next_q_ + offset) = choose(active, q_next, c.q);
    *reinterpret_cast<Lanes*>(next_e_ + offset) = choose(active, e_next, e);
  } else {
    c.least = smaller(c.least, c.d);
    c.sum += y;
    c.least_e = smaller(c.least_e, e_next);
    c.y = y;
    *reinterpret_cast<Lanes*>(next_q_ + offset) = q_next;
    *reinterpret_cast<Lanes*>(next_e_ + offset) = e_next;
  }
  c.e_above = e_next;
  c.d = d_next;
  c.q = q_below;
}

void Sweeps::finish(Chain& c, Index number) {
  LaneState& s = state_;
  const LaneMask live = c.bottom >= 0.0;
  const LaneMask good = live & (c.least >= -kRounding);
  at(s.shift, number) = choose(good, at(s.shift, number) + c.tau, at(s.shift, number));
  at(s.newton, number) = choose(good, 1.0 / c.sum, at(s.newton, number));
  at(s.least, number) = choose(good, c.least, at(s.least, number));
  at(s.failures, number) = choose(good, Lanes{}, at(s.failures, number) + 1.0);
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
      for (Index i = top; i <= bottom; ++i) {
        q_[i * kWidth + lane] = next_q_[i * kWidth + lane];
        e_[i * kWidth + lane] = next_e_[i * kWidth + lane];
      }
      continue;
    }
    if (c.least_e[part] <= kNegligible) {
      for (Index i = bottom - 2; i >= top; --i) {
        if (e_[i * kWidth + lane] > kNegligible) continue;
        ends_[i * kWidth + lane] = s.shift[lane];
        s.top[lane] = static_cast<double>(i + 1);
        s.newton[lane] = 0.0;
        break;
      }
    }
    settle(lane);
  }
}

// Takes the finished rows off the bottom of a lane, finds the top of its block and loads the rows
// that the next shift looks at.
void Sweeps::settle(Index lane) {
  LaneState& s = state_;
  for (;;) {
    const auto bottom = static_cast<Index>(s.bottom[lane]);
    if (bottom < 0) return;
    double* q = q_ + lane;
    double* e = e_ + lane;
    double* ends = ends_ + lane;
    auto top = static_cast<Index>(s.top[lane]);
    if (top > bottom) {
      if (ends[bottom * kWidth] >= 0.0) s.shift[lane] = ends[bottom * kWidth];
      top = bottom;
      while (top > 0 && e[(top - 1) * kWidth] > kNegligible && ends[(top - 1) * kWidth] < 0.0)
        --top;
      s.top[lane] = static_cast<double>(top);
      if (top > 0 && ends[(top - 1) * kWidth] < 0.0) ends[(top - 1) * kWidth] = s.shift[lane];
      e[bottom * kWidth] = 0.0;
      s.newton[lane] = 0.0;
      s.failures[lane] = 0.0;
      s.least[lane] = 1e30;
    }
    const double last = q[bottom * kWidth];
    if (bottom == top || negligible(e[(bottom - 1) * kWidth], last, s.shift[lane])) {
      values_[bottom * kWidth + lane] = last + s.shift[lane];
      s.bottom[lane] = static_cast<double>(bottom - 1);
      if (bottom > top) e[(bottom - 1) * kWidth] = 0.0;
      s.newton[lane] = 0.0;
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
  Sweeps sweeps(n, workspace.arrays.resize(5 * Sweeps::spacing(n)), values);
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
