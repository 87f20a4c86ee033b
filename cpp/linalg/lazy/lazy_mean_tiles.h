// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "linalg/lazy/lazy_heads.h"
#include "linalg/score_tiles.h"

// The mean of several heads as scores, tile by tile of keys. Only kernel sources include it.
namespace attnscope {

namespace lazy_mean_detail {
template <class Float>
struct Parts;
template <>
struct Parts<float> {
  static constexpr std::int32_t kRootHalf = 0x3f3504f3;
  static constexpr int kMantissa = 23;
  static constexpr int kTerms = 5;
};
template <>
struct Parts<double> {
  static constexpr std::int64_t kRootHalf = 0x3fe6a09e667f3bcd;
  static constexpr int kMantissa = 52;
  static constexpr int kTerms = 11;
};
}  // namespace lazy_mean_detail

// log2 of normal numbers above 0, to a few ulp. x = 2^k·m with sqrt(1/2) <= m < sqrt(2), s = (m −
// 1)/(m + 1) and log m = 2·(s + s³/3 + s⁵/5 + ...), where s² < .0295.
template <class Float>
inline FloatsOf<Float> logarithm_of_two(FloatsOf<Float> x) {
  using Parts = lazy_mean_detail::Parts<Float>;
  using Floats = FloatsOf<Float>;
  using Numbers = typename VectorOf<Float>::Numbers;
  const Numbers bits = reinterpret_cast<Numbers>(x);
  const Numbers exponent = (bits - Parts::kRootHalf) >> Parts::kMantissa;
  const Floats m = reinterpret_cast<Floats>(bits - (exponent << Parts::kMantissa));
  const Floats s = (m - Float(1)) / (m + Float(1));
  const Floats z = s * s;
  Floats series = broadcast_as(Float(1) / Float(2 * Parts::kTerms - 1));
#pragma GCC unroll 11
  for (int term = Parts::kTerms - 2; term >= 0; --term)
    series = series * z + Float(1) / Float(2 * term + 1);
  return s * series * Float(2 / 0.69314718055994530942) + __builtin_convertvector(exponent, Floats);
}

// The logarithm of the mean weight stands for a score, so that what measures a head measures the
// mean: the softmax of log A is A. A tile of each head is in memory at a time, and of all where the
// heads' divergence from the mean is asked for.
template <class Float>
class LazyMeanTiles {
  using Tiles = ScoreTiles<Float>;
  using Floats = FloatsOf<Float>;

 public:
  static constexpr Index kLaneCount = Tiles::kLaneCount;
  static constexpr Index kWidth = Tiles::kWidth;
  static constexpr Float kHidden = Tiles::kHidden;
  static constexpr double kLog2 = Tiles::kLog2;

  LazyMeanTiles(const LazyHeads& heads, LazyHeadsWorkspace& workspace)
      : heads_(heads), log2_z_(heads.count * kWidth), divergence_(heads.count * kWidth) {
    workspace.packed.resize(std::max<Index>(workspace.packed.size(), log2_z_.size() / kWidth));
    for (Index head = 0; head < heads.count; ++head)
      tiles_.emplace_back(heads.heads[head], workspace.packed[head], workspace.widened);
    const Index size = kTileSize * (diverges() ? heads.count : 1);
    const auto numbers = [size](AlignedBuffer& buffer) {
      return reinterpret_cast<Float*>(buffer.resize((size * Index{sizeof(Float)} + 7) / 8));
    };
    exponents_ = numbers(workspace.exponents);
    weights_ = numbers(workspace.weights);
  }

  void start(Index begin, Index count) {
    begin_ = begin;
    adds_ = diverges();
    std::fill(divergence_.begin(), divergence_.end(), 0.0);
    std::fill_n(sink_share_, kWidth, 0.0);
    for (Index head = 0; head < heads_.count; ++head) {
      tiles_[head].start(begin, count);
      const LazyHead& states = heads_.heads[head];
      for (Index lane = 0; lane < kWidth; ++lane) {
        double log_z = 0.0;
        if (is_real(lane)) log_z = heads_.log_z[head * states.queries + begin + lane];
        // Without a key there is no weight to divide.
        if (log_z == -std::numeric_limits<double>::infinity()) log_z = 0.0;
        log2_z_[head * kWidth + lane] = static_cast<Float>(log_z / kLog2);
        if (states.sink_logit > -std::numeric_limits<double>::infinity())
          sink_share_[lane] += std::exp(states.sink_logit - log_z);
      }
    }
  }

  bool is_real(Index lane) const { return tiles_[0].is_real(lane); }
  Index first_key() const { return tiles_[0].first_key(); }
  Index last_key() const { return tiles_[0].last_key(); }
  Floats distances(Index first_lane, Index key) const {
    return tiles_[0].distances(first_lane, key);
  }
  Index smallest_distance(Index start, Index stop) const {
    return tiles_[0].smallest_distance(start, stop);
  }
  Index largest_distance(Index start, Index stop) const {
    return tiles_[0].largest_distance(start, stop);
  }
  double sink_score(Index lane) const {
    return std::log2(sink_share_[lane] / static_cast<double>(heads_.count));
  }

  // log2 of the mean weight of keys [start, start + count); kHidden where there is none.
  void scores(Index start, Index count, Float* tile) {
    const Index steps = (count + kExpSteps - 1) / kExpSteps * kExpSteps;
    std::fill_n(tile, steps * kWidth, Float(0));
    for (Index head = 0; head < heads_.count; ++head) {
      const Index place = diverges() ? head * kTileSize : 0;
      tiles_[head].scores(start, count, exponents_ + place);
      add_weights(steps, log2_z_.data() + head * kWidth, place, tile);
    }
    take_logarithm(steps, tile);
    for (Index head = 0; adds_ && head < heads_.count; ++head) add_divergence(head, steps, tile);
  }

  // Tiles that are taken once more add nothing.
  void finish() {
    for (Index head = 0; adds_ && head < heads_.count; ++head) {
      for (Index lane = 0; lane < kWidth; ++lane) {
        if (!is_real(lane)) continue;
        heads_.divergence[head * heads_.heads[head].queries + begin_ + lane] =
            kLog2 * divergence_[head * kWidth + lane];
      }
    }
    adds_ = false;
  }

 private:
  static constexpr Index kTileSize = kScoreTile * kWidth;
  static_assert(kScoreTile % kExpSteps == 0);

  bool diverges() const { return heads_.divergence != nullptr; }

  void add_weights(Index steps, const Float* log2_z, Index place, Float* tile) {
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      const Floats z = floats_at(log2_z + v);
      for (Index j = 0; j < steps; j += kExpSteps) {
        Floats t[kExpSteps], p[kExpSteps];
#pragma GCC unroll 4
        for (Index u = 0; u < kExpSteps; ++u)
          t[u] = floats_at(exponents_ + place + (j + u) * kWidth + v) - z;
        powers_of_two<Float>(t, p);
#pragma GCC unroll 4
        for (Index u = 0; u < kExpSteps; ++u) {
          const Index at = (j + u) * kWidth + v;
          put(tile + at, floats_at(tile + at) + p[u]);
          if (!diverges()) continue;
          put(exponents_ + place + at, t[u]);
          put(weights_ + place + at, p[u]);
        }
      }
    }
  }

  void take_logarithm(Index steps, Float* tile) const {
    const Float share = Float(1) / static_cast<Float>(heads_.count);
    for (Index k = 0; k < steps * kWidth; k += kLaneCount) {
      const Floats mean = floats_at(tile + k) * share;
      const Floats logarithm = logarithm_of_two<Float>(mean);
      const Floats finite =
          mean < std::numeric_limits<Float>::min() ? broadcast_as(kHidden) : logarithm;
      put(tile + k, mean == mean ? finite : mean);
    }
  }

  void add_divergence(Index head, Index steps, const Float* tile) {
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      Floats sum{};
      for (Index j = 0; j < steps; ++j) {
        const Index at = head * kTileSize + j * kWidth + v;
        // A mean that is as good as 0 may stand beside a weight that is not quite.
        const Floats mean =
            larger_of<Float>(broadcast_as(Float(kSmallestLog2)), floats_at(tile + j * kWidth + v));
        sum += floats_at(weights_ + at) * (floats_at(exponents_ + at) - mean);
      }
      for (Index lane = 0; lane < kLaneCount; ++lane)
        divergence_[head * kWidth + v + lane] += static_cast<double>(sum[lane]);
    }
  }

  static constexpr int kSmallestLog2 = std::numeric_limits<Float>::min_exponent - 24;

  LazyHeads heads_;
  std::vector<Tiles> tiles_;
  std::vector<Float> log2_z_;
  std::vector<double> divergence_;
  Float *exponents_, *weights_;
  Index begin_ = 0;
  bool adds_ = false;
  double sink_share_[kWidth];
};

}  // namespace attnscope
