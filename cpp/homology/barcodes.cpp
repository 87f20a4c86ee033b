// SPDX-License-Identifier: MIT
#include "homology/barcodes.h"

#include <algorithm>
#include <cmath>

namespace attnscope {

void bar_sums(const BarSpans& bars, BarSums (&sums)[kBarDimensions]) {
  std::fill(std::begin(sums), std::end(sums), BarSums{});
  const std::size_t count = bars.birth.size();
  for (std::size_t k = 0; k < count; ++k) {
    BarSums& of_dimension = sums[bars.dimension[k]];
    ++of_dimension.count;
    const double length = bars.death[k] - bars.birth[k];
    if (!std::isfinite(length)) continue;
    ++of_dimension.finite;
    of_dimension.total += length;
    of_dimension.longest = std::max(of_dimension.longest, length);
  }
}

void bar_entropies(const BarSpans& bars, double (&entropies)[kBarDimensions]) {
  BarSums sums[kBarDimensions];
  bar_sums(bars, sums);
  std::fill(std::begin(entropies), std::end(entropies), 0.0);
  for (std::size_t k = 0; k < bars.birth.size(); ++k) {
    const double length = bars.death[k] - bars.birth[k];
    const double share = length / sums[bars.dimension[k]].total;
    // A length far below the sum can underflow to a share of 0, whose term is 0.
    if (std::isfinite(length) && share > 0.0)
      entropies[bars.dimension[k]] -= share * std::log(share);
  }
  for (double& entropy : entropies) entropy = std::max(entropy, 0.0);
}

void count_alive(const BarSpans& bars, std::span<const double> scales, std::int64_t* counts) {
  const std::size_t count = bars.birth.size();
  for (std::size_t s = 0; s < scales.size(); ++s) {
    const double scale = scales[s];
    std::int64_t all = 0;
    std::int64_t loops = 0;
    for (std::size_t k = 0; k < count; ++k) {
      const std::int64_t is_alive = (bars.birth[k] <= scale) & (scale < bars.death[k]);
      all += is_alive;
      loops += is_alive & bars.dimension[k];
    }
    counts[kBarDimensions * s] = all - loops;
    counts[kBarDimensions * s + 1] = loops;
  }
}

}  // namespace attnscope
