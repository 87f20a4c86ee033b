// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>

namespace attnscope {

// Bars of a matrix are of dimensions 0 and 1.
inline constexpr int kBarDimensions = 2;

// The bars of one matrix, field by field, in any order.
struct BarSpans {
  std::span<const double> birth;
  std::span<const double> death;  // infinite where nothing ends a bar
  std::span<const std::int8_t> dimension;
};

// What the bars of one dimension add up to; all but the count are of finite bars alone.
struct BarSums {
  std::int64_t count = 0;
  std::int64_t finite = 0;
  double total = 0.0;    // Σ (death − birth)
  double longest = 0.0;  // the largest of them, 0 without a bar
};

// The sums of every dimension of one matrix's bars. Cost O(bars).
void bar_sums(const BarSpans& bars, BarSums (&sums)[kBarDimensions]);

// −Σ p log p over the finite bars of every dimension, p = length/Σ length, 0 without a bar.
void bar_entropies(const BarSpans& bars, double (&entropies)[kBarDimensions]);

// How many bars of every dimension are alive at each of `scales`, birth <= scale < death, to
// counts[kBarDimensions·k + dimension]. Cost O(bars·scales).
void count_alive(const BarSpans& bars, std::span<const double> scales, std::int64_t* counts);

}  // namespace attnscope
