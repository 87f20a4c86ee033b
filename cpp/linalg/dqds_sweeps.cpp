// SPDX-License-Identifier: MIT
#include "linalg/dqds_sweeps.h"

#include <algorithm>

namespace attnscope::dqds {

void Sweeps::run(const double* diagonal, const double* superdiagonal, double* scale, Index most) {
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
    state_.q0[lane] = state_.q1[lane] = state_.q2[lane] = 1.0;
    unlearn(lane);
    settle(lane, true);
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
    if (count == 0 || sweep == most) return;
    const std::span<const Index> rising(bottoms, static_cast<std::size_t>(count));
    if (chains_in_use() == 1) {
      sweep_chains<1>(rising);
    } else {
      sweep_chains<kChains>(rising);
    }
  }
}

// How many chains there are up to the last that is not done: 1 where fewer matrices are solved than
// there is room for, or where the others have converged.
Index Sweeps::chains_in_use() const {
  Index last = kWidth - 1;
  while (last > 0 && done(last)) --last;
  return last / kPackWidth + 1;
}

// Sweeps over the first kUsed chains; `bottoms`: the last rows of their lanes, rising.
template <Index kUsed>
void Sweeps::sweep_chains(std::span<const Index> bottoms) {
  Chain chains[kUsed];
  for (Index c = 0; c < kUsed; ++c) chains[c] = begin(c);
  const Arrays arrays{q_, e_, next_q_, next_e_, broadcast(floor_)};
  Index row = 0;
  const auto all_chains = [&] {
#pragma GCC unroll 2
    for (Index c = 0; c < kUsed; ++c) step(chains[c], arrays, row * kWidth + c * kPackWidth);
    ++row;
  };
  for (const Index bottom : bottoms) {
    while (row < bottom) all_chains();
    const double number = static_cast<double>(row);
    for (Index c = 0; c < kUsed; ++c) {
      Chain& chain = chains[c];
      const LaneMask ends = at(state_.bottom, c) == number;
      chain.last = choose(ends, chain.d, chain.last);
      chain.least_above = choose(ends, chain.least, chain.least_above);
      chain.whole_least = choose(ends, smaller(chain.least, chain.d), chain.whole_least);
      chain.sum_above = choose(ends, chain.sum, chain.sum_above);
      chain.squares_above = choose(ends, chain.squares, chain.squares_above);
    }
    all_chains();
    for (Index c = 0; c < kUsed; ++c) {
      Chain& chain = chains[c];
      const LaneMask ends = at(state_.bottom, c) == number;
      chain.whole_sum = choose(ends, chain.sum, chain.whole_sum);
      chain.whole_squares = choose(ends, chain.squares, chain.whole_squares);
    }
  }
  std::swap(q_, next_q_);
  std::swap(e_, next_e_);
  for (Index c = 0; c < kUsed; ++c) {
    const Chain finished = chains[c];  // a copy, so that the loops above keep theirs in registers
    finish(finished, c);
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
  const Lanes after_failure =
      choose(failures < 2.0, larger(at(s.tau, number), lower), choose(failures < 3.0, lower, zero));
  Chain chain;
  chain.tau = larger(choose(failures > 0.0, after_failure, tau), slack(number));
  chain.d = at(q_, number) - chain.tau;
  chain.least = broadcast(kOutside);
  chain.y = chain.w = chain.sum = chain.squares = zero;
  chain.last = chain.sum_above = chain.squares_above = zero;
  chain.whole_sum = chain.whole_squares = chain.whole_least = chain.least_above = zero;
  return chain;
}

// One row of the sweep for every lane of a chain.
[[gnu::always_inline]] inline void Sweeps::step(Chain& c, const Arrays& arrays, Index offset) {
  const Lanes e = *reinterpret_cast<const Lanes*>(arrays.e + offset);
  const Lanes q_below = *reinterpret_cast<const Lanes*>(arrays.q + offset + kWidth);
  // A d below 0 by no more than the slack counts as 0, and so does every d after it: the eigenvalue
  // that was found here leaves at the bottom, which in a cluster it would otherwise approach by a
  // row a sweep. Beside an e that counts for nothing d itself is lifted, not d + e alone: the next
  // d is q·d / (d + e), which would vanish beside a lifted sum, and an eigenvalue with it.
  const Lanes d = larger(c.d, choose(e > arrays.floor, Lanes{}, arrays.floor));
  const Lanes q_next = d + e;
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
  c.d = multiply_add(d, ratio, -c.tau);
  *reinterpret_cast<Lanes*>(arrays.next_e + offset) = e * ratio;
}

void Sweeps::finish(const Chain& c, Index number) {
  LaneState& s = state_;
  const LaneMask live = at(s.bottom, number) >= 0.0;
  const LaneMask good = live & (c.whole_least >= -(slack(number) + kRounding));
  at(s.shift, number) = choose(good, at(s.shift, number) + c.tau, at(s.shift, number));
  at(s.least, number) = choose(good, c.whole_least, at(s.least, number));
  at(s.failures, number) = choose(good, Lanes{}, at(s.failures, number) + 1.0);
  at(s.sweeps, number) += 1.0;
  // Laguerre's bound from below and a mean of the eigenvalues from above, from the traces S1 and S2
  // of the inverse and of its square. Where the eigenvalues crowd, the difference under the root
  // cancels: the bound stays one when it is taken for larger than it is. Traces that overflow, as
  // where an eigenvalue was just found, give the bound 0 and no mean.
  const auto bounds = [&](Lanes order, Lanes first, Lanes second, double* lower, double* upper) {
    const Lanes all = order * second;
    const Lanes spread = larger(all - first * first, Lanes{}) + 1e-14 * all;
    const Lanes bound = (1.0 - 1e-14) * order / (first + square_root((order - 1.0) * spread));
    at(lower, number) = choose(good, bound, at(lower, number));
    at(upper, number) = choose(good, first / second, at(upper, number));
  };
  const Lanes order = at(s.bottom, number) - at(s.top, number) + 1.0;
  bounds(order, c.whole_sum, c.whole_squares, s.lower, s.upper);
  bounds(order - 1.0, c.sum_above, c.squares_above, s.lower_next, s.upper_next);
  // A d that is negative at the very end, and there alone, says how much too large the shift was.
  const Lanes repaired = c.tau + c.last;
  const LaneMask usable = (c.least_above >= 0.0) & (repaired > 0.0) & (repaired < c.tau);
  at(s.tau, number) = choose(usable, 0.9999 * repaired, 0.25 * c.tau);

  for (Index part = 0; part < kPackWidth; ++part) {
    const Index lane = number * kPackWidth + part;
    if (!live[part]) continue;
    if (!good[part]) {
      for (Index i = 0; i < n_; ++i) {
        q_[i * kWidth + lane] = next_q_[i * kWidth + lane];
        e_[i * kWidth + lane] = next_e_[i * kWidth + lane];
      }
      continue;
    }
    if (s.sweeps[lane] >= kPatience) split_above(lane, static_cast<Index>(s.bottom[lane]) - 2);
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

// Splits a lane's block at its last negligible entry up to row `from`, where there is one.
void Sweeps::split_above(Index lane, Index from) {
  const auto top = static_cast<Index>(state_.top[lane]);
  while (from >= top && e_[from * kWidth + lane] > negligible_) --from;
  if (from >= top) split(lane, from);
}

// Takes the finished rows off the bottom of a lane, finds the next block where one is finished, and
// loads the rows that the next shift looks at. `is_new`: the block was not searched for places
// where it falls apart.
void Sweeps::settle(Index lane, bool is_new) {
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
      is_new = true;
    }
    // Rows below which nothing is left of a new block leave one after another, and what is above
    // them is moved once.
    if (is_new && bottom > top && e[(bottom - 1) * kWidth] > negligible_) {
      split_above(lane, bottom - 2);
      top = static_cast<Index>(s.top[lane]);
      is_new = false;
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

}  // namespace attnscope::dqds
