// SPDX-License-Identifier: MIT
#include "kernels/lazy_attention/lazy_attention.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "linalg/lazy/lazy_mean_tiles.h"
#include "linalg/score_tiles.h"
#include "matrix/matrix_view.h"

namespace attnscope {
namespace {

// Weights of a block that wait for log Z take no more memory than this; a longer head is gone
// through twice.
constexpr Index kLongestBlock = Index{12} << 20;  // bytes

// Ranks of a query that stay in registers.
constexpr Index kFewRanks = 8;
static_assert(kExpSteps == 4);

constexpr double kLog2 = 0.69314718055994530942;

// One block of queries after another. p = 2^(s − m), m the running maximum of a query. Sums of a
// tile are in Float, those of tiles in float64, and these are brought to a new maximum once a tile.
// What needs final weights (columns, entries, Aᵀ·x) takes no second product: the weights of the
// block stay, each relative to its tile's maximum, and once log Z is known one factor a query and
// tile makes them final. `Tiles` gives the scores: of a head, or of the mean of several.
template <class Float, class Tiles>
class BlockMeasures {
  using Floats = FloatsOf<Float>;
  static constexpr Index kLaneCount = Tiles::kLaneCount;
  static constexpr Index kWidth = Tiles::kWidth;
  static constexpr Float kHidden = Tiles::kHidden;

 public:
  BlockMeasures(Tiles tiles, const LazyHead& head, const LazyRequest& request, const LazyRows& rows,
                LazyColumns& columns, LazyEntries& entries, LazyWorkspace& workspace)
      : head_(head),
        request_(request),
        rows_(rows),
        columns_(columns),
        entries_(entries),
        hits_(workspace.hits),
        tiles_(std::move(tiles)),
        stays_(request.wants_weights() &&
               kWidth * (head.keys + kScoreTile) * Index{sizeof(Float)} <= kLongestBlock) {
    const Index count = head.keys / kScoreTile + 1;
    const auto numbers = [](AlignedBuffer& buffer, Index size) {
      return reinterpret_cast<Float*>(buffer.resize((size * Index{sizeof(Float)} + 7) / 8));
    };
    weights_ = numbers(workspace.weights, kWidth * kScoreTile * (stays_ ? count : 1));
    maxima_ = numbers(workspace.maxima, kWidth * count);
    product_ = numbers(workspace.product, kWidth * std::max<Index>(1, request.right_channels));
    ranks_ = numbers(workspace.ranks, kWidth * std::max(kFewRanks, request.top));
    left_ = numbers(workspace.sums, std::max<Index>(1, head.keys * request.left_channels));
    std::fill_n(left_, head.keys * request.left_channels, Float(0));
    first_mass_.resize(kWidth * request.firsts.size());
    near_mass_.resize(kWidth * request.near_count);
    beyond_mass_.resize(kWidth * request.near_count);
  }

  void run(Index begin, Index end) {
    for (Index query = begin; query < end; query += kWidth)
      measure_block(query, std::min(kWidth, end - query));
    if (request_.left_channels > 0) {
      columns_.product.assign(left_, left_ + head_.keys * request_.left_channels);
    }
  }

  void write_tile(Index begin, Index end, Index start, Index stop, const double* log_z,
                  double* out) {
    for (Index query = begin; query < end; query += kWidth) {
      const Index count = std::min(kWidth, end - query);
      tiles_.start(query, count);
      for (Index key = start; key < stop; key += kScoreTile) {
        const Index keys = std::min(kScoreTile, stop - key);
        tiles_.scores(key, keys, weights_);
        for (Index lane = 0; lane < count; ++lane) {
          for (Index j = 0; j < keys; ++j) {
            double& weight = out[(query + lane - begin) * (stop - start) + key - start + j];
            weight = kNaN;
            if (!tiles_.is_real(lane)) continue;
            const double score = weights_[j * kWidth + lane];
            weight = head_.sees(query + lane, key + j) && score > kHidden / 2
                         ? std::exp(score * kLog2 - log_z[query + lane])
                     : std::isnan(score) && head_.sees(query + lane, key + j) ? kNaN
                                                                              : 0.0;
          }
        }
      }
    }
  }

 private:
  void measure_block(Index query, Index count) {
    query_ = query;
    count_ = count;
    tiles_.start(query, count);
    begin();
    const Index first = tiles_.first_key(), last = tiles_.last_key();
    Float *tile = weights_, *maxima = maxima_;
    for (Index key = first; key < last; key += kScoreTile) {
      const Index keys = std::min(kScoreTile, last - key);
      tiles_.scores(key, keys, tile);
      if (request_.top > 0) rank(keys, tile);
      weigh(key, keys, tile);
      add_parts(key, keys, tile);
      if (!stays_) continue;
      std::copy_n(max_, kWidth, maxima);
      maxima += kWidth;
      tile += kScoreTile * kWidth;
    }
    finish();
    tiles_.finish();
    if (request_.wants_weights()) take_columns(first, last);
    if (request_.threshold > 0.0) store_entries();
    if (request_.top > 0) store_top();
  }

  void begin() {
    std::fill_n(max_, kWidth, kHidden);
    for (double* sums : {mass_, entropy_, collision_, distance_, far_mass_, far_squares_})
      std::fill_n(sums, kWidth, 0.0);
    std::fill(first_mass_.begin(), first_mass_.end(), 0.0);
    std::fill(near_mass_.begin(), near_mass_.end(), 0.0);
    std::fill(beyond_mass_.begin(), beyond_mass_.end(), 0.0);
    std::fill_n(far_max_, kWidth, Float(0));
    std::fill_n(product_, kWidth * request_.right_channels, Float(0));
    if (request_.top > 0) std::fill_n(ranks_, kWidth * std::max(kFewRanks, request_.top), kHidden);
    hits_.clear();
  }

  // Scores of a tile become weights, and its sums are added.
  void weigh(Index key, Index keys, Float* tile) {
    const bool read_again = request_.wants_weights() || request_.right != nullptr ||
                            request_.far > 0 || request_.near_count > 0 ||
                            (!request_.firsts.empty() && key < request_.firsts.back());
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      Floats m = floats_at(max_ + v);
      for (Index j = 0; j < keys; ++j) m = larger_of<Float>(floats_at(tile + j * kWidth + v), m);
      const Floats drop = larger_of<Float>(floats_at(max_ + v) - m, broadcast_as(Float(-1e4)));
      put(max_ + v, m);
      put(drop_ + v, drop);
      put(rise_ + v, power_of_two<Float>(drop));
      // A query that has seen no key yet has the score of hidden keys as its maximum, and no
      // weight.
      const Floats origin = m > kHidden / 2 ? m : Floats{};
      Floats mass{}, entropy{}, collision{}, moment{}, distance = tiles_.distances(v, key);
      for (Index j = 0; j < keys; j += kExpSteps) {
        Floats t[kExpSteps], p[kExpSteps];
#pragma GCC unroll 4
        for (Index u = 0; u < kExpSteps; ++u)
          t[u] = floats_at(tile + (j + u) * kWidth + v) - origin;
        powers_of_two<Float>(t, p);
#pragma GCC unroll 4
        for (Index u = 0; u < kExpSteps; ++u) {
          mass += p[u];
          entropy += p[u] * t[u];
          collision += p[u] * p[u];
          moment += p[u] * magnitude_of<Float>(distance);
          distance -= Float(1);
          if (read_again) put(tile + (j + u) * kWidth + v, p[u]);
        }
      }
      put(tile_mass_ + v, mass);
      put(tile_entropy_ + v, entropy);
      put(tile_collision_ + v, collision);
      put(tile_distance_ + v, moment);
    }
    for (Index lane = 0; lane < kWidth; ++lane) {
      const double factor = rise_[lane];
      entropy_[lane] = factor * (entropy_[lane] + drop_[lane] * mass_[lane]) + tile_entropy_[lane];
      collision_[lane] = factor * factor * collision_[lane] + tile_collision_[lane];
      distance_[lane] = factor * distance_[lane] + tile_distance_[lane];
      mass_[lane] = factor * mass_[lane] + tile_mass_[lane];
    }
  }

  // What only some are asked for, tile by tile.
  void add_parts(Index key, Index keys, const Float* tile) {
    for (std::size_t k = 0; k < request_.firsts.size(); ++k) {
      double* const sums = first_mass_.data() + k * kWidth;
      rescale(sums);
      const Index leading = std::clamp<Index>(request_.firsts[k] - key, 0, keys);
      if (leading > 0) add_rows(leading, tile, sums);
    }
    for (Index k = 0; k < request_.near_count; ++k) {
      double* const near = near_mass_.data() + k * kWidth;
      double* const beyond = beyond_mass_.data() + k * kWidth;
      rescale(near);
      rescale(beyond);
      const Index first = key == 0 && request_.without_first ? 1 : 0;
      if (first == 0 && tiles_.smallest_distance(key, key + keys) >= request_.nears[k]) {
        for (Index lane = 0; lane < kWidth; ++lane) beyond[lane] += tile_mass_[lane];
      } else {
        split_at(key, first, keys, request_.nears[k], tile, near, beyond);
      }
    }
    if (request_.far > 0) {
      rescale(far_mass_);
      for (Index lane = 0; lane < kWidth; ++lane) {
        far_squares_[lane] *= static_cast<double>(rise_[lane]) * rise_[lane];
        far_max_[lane] *= rise_[lane];
      }
      if (tiles_.largest_distance(key, key + keys) >= request_.far) add_far(key, keys, tile);
    }
    if (request_.right != nullptr) {
      for (Index c = 0; c < request_.right_channels; ++c) {
        for (Index v = 0; v < kWidth; v += kLaneCount) {
          put(product_ + c * kWidth + v,
              floats_at(product_ + c * kWidth + v) * floats_at(rise_ + v));
        }
      }
      multiply_tile<Float, kTileVectors, kTileKeys>(
          tile, kWidth, keys, static_cast<const Float*>(request_.right) + key, head_.keys,
          request_.right_channels, product_, kWidth, true, 0);
    }
  }

  void rescale(double* sums) const {
    for (Index lane = 0; lane < kWidth; ++lane) sums[lane] *= rise_[lane];
  }

  static void add_rows(Index count, const Float* tile, double* sums) {
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      Floats sum{};
      for (Index j = 0; j < count; ++j) sum += floats_at(tile + j * kWidth + v);
      for (Index lane = 0; lane < kLaneCount; ++lane) sums[v + lane] += sum[lane];
    }
  }

  // Adds keys [first, keys) of a tile to those nearer than `border`, or to those beyond.
  void split_at(Index key, Index first, Index keys, Index border, const Float* tile, double* near,
                double* beyond) const {
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      Floats inner{}, outer{}, distance = tiles_.distances(v, key + first);
      for (Index j = first; j < keys; ++j, distance -= Float(1)) {
        const Floats p = floats_at(tile + j * kWidth + v);
        const auto is_near = magnitude_of<Float>(distance) < static_cast<Float>(border);
        inner += is_near ? p : Floats{};
        outer += is_near ? Floats{} : p;
      }
      for (Index lane = 0; lane < kLaneCount; ++lane) {
        near[v + lane] += inner[lane];
        beyond[v + lane] += outer[lane];
      }
    }
  }

  void add_far(Index key, Index keys, const Float* tile) {
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      Floats sum{}, squares{}, most{}, distance = tiles_.distances(v, key);
      for (Index j = 0; j < keys; ++j, distance -= Float(1)) {
        const Floats all = floats_at(tile + j * kWidth + v);
        const Floats p =
            magnitude_of<Float>(distance) >= static_cast<Float>(request_.far) ? all : Floats{};
        sum += p;
        squares += p * p;
        most = larger_of<Float>(p, most);
      }
      put(far_max_ + v, larger_of<Float>(most, floats_at(far_max_ + v)));
      for (Index lane = 0; lane < kLaneCount; ++lane) {
        far_mass_[v + lane] += sum[lane];
        far_squares_[v + lane] += squares[lane];
      }
    }
  }

  // The largest scores of each query: the larger stays in its place, the smaller moves on.
  void rank(Index keys, const Float* tile) {
    const Index top = request_.top;
    if (top <= kFewRanks) return rank_in_registers(keys, tile);
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      const Float* const lowest = ranks_ + (top - 1) * kWidth + v;
      for (Index first = 0; first < keys; first += kExpSteps) {
        // Most steps hold no score of the ranks; a tile is filled up with hidden scores.
        Floats largest = floats_at(tile + first * kWidth + v);
#pragma GCC unroll 4
        for (Index u = 1; u < kExpSteps; ++u) {
          largest = larger_of<Float>(floats_at(tile + (first + u) * kWidth + v), largest);
        }
        if (lane_bits(largest > floats_at(lowest)) == 0) [[likely]]
          continue;
        for (Index u = 0; u < kExpSteps; ++u)
          insert_rank(v, floats_at(tile + (first + u) * kWidth + v));
      }
    }
  }

  // The same of up to kFewRanks scores, which stay in registers over a tile.
  void rank_in_registers(Index keys, const Float* tile) {
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      Floats ranked[kFewRanks];
#pragma GCC unroll 8
      for (Index k = 0; k < kFewRanks; ++k) ranked[k] = floats_at(ranks_ + k * kWidth + v);
      for (Index first = 0; first < keys; first += kExpSteps) {
        Floats scores[kExpSteps];
#pragma GCC unroll 4
        for (Index u = 0; u < kExpSteps; ++u)
          scores[u] = floats_at(tile + (first + u) * kWidth + v);
        const Floats largest = larger_of<Float>(larger_of<Float>(scores[0], scores[1]),
                                                larger_of<Float>(scores[2], scores[3]));
        if (lane_bits(largest > ranked[kFewRanks - 1]) == 0) [[likely]]
          continue;
#pragma GCC unroll 4
        for (Index u = 0; u < kExpSteps; ++u) {
#pragma GCC unroll 8
          for (Index k = 0; k < kFewRanks; ++k) {
            const Floats larger = larger_of<Float>(scores[u], ranked[k]);
            scores[u] = smaller_of<Float>(scores[u], ranked[k]);
            ranked[k] = larger;
          }
        }
      }
#pragma GCC unroll 8
      for (Index k = 0; k < kFewRanks; ++k) put(ranks_ + k * kWidth + v, ranked[k]);
    }
  }

  void insert_rank(Index v, Floats score) {
    const Index top = request_.top;
    if (lane_bits(score > floats_at(ranks_ + (top - 1) * kWidth + v)) == 0) return;
    for (Index k = 0; k < top; ++k) {
      const Floats ranked = floats_at(ranks_ + k * kWidth + v);
      put(ranks_ + k * kWidth + v, larger_of<Float>(score, ranked));
      score = smaller_of<Float>(score, ranked);
    }
  }

  void finish() {
    for (Index lane = 0; lane < kWidth; ++lane) {
      non_finite_[lane] = false;
      share_[lane] = Float(0);
      if (!tiles_.is_real(lane)) continue;
      const bool sees_nothing = mass_[lane] == 0.0;
      const double m = sees_nothing ? 0.0 : static_cast<double>(max_[lane]);
      const double sink = tiles_.sink_score(lane);
      // infinite where a finite sink leaves nothing to the keys; an infinite one is no number
      const double z = sink == std::numeric_limits<double>::infinity()
                           ? kNaN
                           : mass_[lane] + std::exp2(sink - m);
      non_finite_[lane] = std::isnan(z);
      share_[lane] = sees_nothing && !non_finite_[lane] ? Float(0) : static_cast<Float>(1.0 / z);
      write_row(lane, m, z);
    }
  }

  void write_row(Index lane, double m, double z) const {
    const Index row = query_ + lane;
    const bool sink_takes_all = std::isinf(z);
    const double log2_z = sink_takes_all ? tiles_.sink_score(lane) - m : std::log2(z);
    const bool sees_nothing = mass_[lane] == 0.0;
    const double scale = sees_nothing && !non_finite_[lane] ? 0.0 : 1.0 / z;
    const auto write = [row](double* to, double value) {
      if (to != nullptr) to[row] = value;
    };
    write(rows_.log_z, sink_takes_all ? head_.sink_logit : kLog2 * (m + log2_z));
    write(rows_.entropy,
          sees_nothing ? 0.0
                       : std::max(0.0, kLog2 * (mass_[lane] * log2_z - entropy_[lane]) * scale));
    if (rows_.entropy != nullptr && non_finite_[lane]) rows_.entropy[row] = kNaN;
    write(rows_.collision, collision_[lane] * scale * scale);
    write(rows_.largest, scale);
    write(rows_.distance, distance_[lane] * scale);
    write(rows_.mass, mass_[lane] * scale);
    write(rows_.far_mass, far_mass_[lane] * scale);
    write(rows_.far_squares, far_squares_[lane] * scale * scale);
    write(rows_.far_largest, static_cast<double>(far_max_[lane]) * scale);
    const auto firsts = static_cast<Index>(request_.firsts.size());
    for (Index k = 0; k < firsts; ++k)
      rows_.first[row * firsts + k] = first_mass_[k * kWidth + lane] * scale;
    for (Index k = 0; k < request_.near_count; ++k) {
      rows_.near[row * request_.near_count + k] = near_mass_[k * kWidth + lane] * scale;
      rows_.beyond[row * request_.near_count + k] = beyond_mass_[k * kWidth + lane] * scale;
    }
    for (Index c = 0; c < request_.right_channels; ++c) {
      rows_.product[row * request_.right_channels + c] =
          static_cast<double>(product_[c * kWidth + lane]) * scale;
    }
  }

  // Weights become final and columns take them. A head whose weights did not stay is gone through
  // once more.
  void take_columns(Index first, Index last) {
    const bool any_non_finite =
        std::any_of(non_finite_, non_finite_ + kWidth, [](bool is_nan) { return is_nan; });
    for (Index lane = 0; lane < kWidth; ++lane) {
      below_[lane] = std::numeric_limits<Float>::infinity();
      if (!tiles_.is_real(lane)) continue;
      if (request_.threshold > 0.0) below_[lane] = just_below(request_.threshold);
      if (request_.top > 0) below_[lane] = lowest_ranked(lane);
    }
    const bool only_seeks = !request_.columns && request_.left_channels == 0;
    Float *tile = weights_, *maxima = maxima_;
    for (Index key = first; key < last; key += kScoreTile) {
      const Index keys = std::min(kScoreTile, last - key);
      if (stays_) {
        for (Index v = 0; v < kWidth; v += kLaneCount) {
          const Floats rise = power_of_two<Float>(floats_at(maxima + v) - floats_at(max_ + v));
          put(factor_ + v, rise * floats_at(share_ + v));
        }
        maxima += kWidth;
      } else {
        tiles_.scores(key, keys, tile);
        finish_tile(keys, tile);
        std::copy_n(share_, kWidth, factor_);
      }
      if (only_seeks) {
        seek_unscaled(key, keys, tile);
      } else {
        if (any_non_finite) fill_non_finite(key, keys, tile);
        add_columns(key, keys, tile);
      }
      if (stays_) tile += kScoreTile * kWidth;
    }
  }

  // The weights of a tile relative to the largest of each query.
  void finish_tile(Index keys, Float* tile) const {
    for (Index j = 0; j < keys; ++j) {
      for (Index v = 0; v < kWidth; v += kLaneCount) {
        put(tile + j * kWidth + v,
            power_of_two<Float>(floats_at(tile + j * kWidth + v) - floats_at(max_ + v)));
      }
    }
  }

  // A query with a NaN score is NaN where it sees a key, and nowhere else.
  void fill_non_finite(Index key, Index keys, Float* tile) {
    for (Index lane = 0; lane < kWidth; ++lane) {
      if (!non_finite_[lane]) continue;
      factor_[lane] = Float(1);
      for (Index j = 0; j < keys; ++j) {
        tile[j * kWidth + lane] =
            head_.sees(query_ + lane, key + j) ? std::numeric_limits<Float>::quiet_NaN() : Float(0);
      }
    }
  }

  static Float just_below(double threshold) {
    auto least = static_cast<Float>(threshold);
    if (static_cast<double>(least) < threshold)
      least = std::nextafter(least, std::numeric_limits<Float>::infinity());
    return std::nextafter(least, Float(0));
  }

  // A little below the weight of the last rank, because the same weight comes from its tile with
  // another rounding.
  Float lowest_ranked(Index lane) const {
    const Float score = ranks_[(request_.top - 1) * kWidth + lane];
    if (!(score > kHidden / 2)) return Float(0);
    return static_cast<Float>(std::exp2(static_cast<double>(score) - max_[lane]) * share_[lane] *
                              (1.0 - 1e-4));
  }

  void add_columns(Index key, Index keys, Float* tile) {
    alignas(64) Float sums[kScoreTile * kLaneCount];
    alignas(64) Float squares[kScoreTile * kLaneCount];
    const bool seeks = request_.threshold > 0.0 || request_.top > 0;
    const bool keeps = request_.left_channels > 0 || request_.far > 0 || seeks;
    for (Index j = 0; j < keys; ++j) {
      Floats sum{}, square{};
#pragma GCC unroll 4
      for (Index v = 0; v < kWidth; v += kLaneCount) {
        const Floats w = floats_at(tile + j * kWidth + v) * floats_at(factor_ + v);
        sum += w;
        square += w * w;
        if (keeps) put(tile + j * kWidth + v, w);
      }
      put(sums + j * kLaneCount, sum);
      put(squares + j * kLaneCount, square);
    }
    if (seeks) seek(key, keys, tile);
    if (request_.columns) {
      add_lanes(sums, keys, columns_.incoming.data() + key);
      add_lanes(squares, keys, columns_.squares.data() + key);
    }
    if (request_.far > 0 && request_.columns) add_far_columns(key, keys, tile, sums);
    for (Index c = 0; c < request_.left_channels;) {
      const Index stride = request_.left_channels;
      const Float* const x = static_cast<const Float*>(request_.left) + query_ * stride + c;
      Float* const to = left_ + key * stride + c;
      const bool is_wide = stride - c >= kTileVectors * kLaneCount;
      if (is_wide) {
        multiply_tile<Float, kTileVectors, kTileKeys>(x, stride, count_, tile, kWidth, keys, to,
                                                      stride, true, 0);
      } else {
        multiply_tile<Float, 1, 8>(x, stride, count_, tile, kWidth, keys, to, stride, true, 0);
      }
      c += is_wide ? kTileVectors * kLaneCount : kLaneCount;
    }
  }

  void add_far_columns(Index key, Index keys, const Float* tile, Float* sums) {
    if (tiles_.largest_distance(key, key + keys) < request_.far) return;
    for (Index j = 0; j < keys; ++j) {
      Floats sum{};
      for (Index v = 0; v < kWidth; v += kLaneCount) {
        const Floats distance = magnitude_of<Float>(tiles_.distances(v, key + j));
        sum += distance >= static_cast<Float>(request_.far) ? floats_at(tile + j * kWidth + v)
                                                            : Floats{};
      }
      put(sums + j * kLaneCount, sum);
    }
    add_lanes(sums, keys, columns_.far_incoming.data() + key);
  }

  // to[j] += the sum of the lanes of vector j
  static void add_lanes(const Float* vectors, Index count, double* to) {
    for (Index j = 0; j < count; j += kLaneCount) {
      const Index rest = std::min(kLaneCount, count - j);
      Floats x[kLaneCount] = {};
      for (Index k = 0; k < rest; ++k) x[k] = floats_at(vectors + (j + k) * kLaneCount);
      turn_lanes<Float, true>(x);
      for (Index k = 0; k < rest; ++k) to[j + k] += x[0][k];
    }
  }

  void seek(Index key, Index keys, const Float* tile) {
    for (Index j = 0; j < keys; ++j) {
      for (Index v = 0; v < kWidth; v += kLaneCount) {
        const Floats w = floats_at(tile + j * kWidth + v);
        for (unsigned bits = lane_bits(w > floats_at(below_ + v)); bits != 0; bits &= bits - 1) {
          const int lane = std::countr_zero(bits);
          hits_.push_back(
              {static_cast<std::int32_t>(v + lane), static_cast<std::int32_t>(key + j), w[lane]});
        }
      }
    }
  }

  // The same of weights that `factor_` would make final: few are, so that the others need no
  // product.
  void seek_unscaled(Index key, Index keys, const Float* tile) {
    alignas(64) Float limits[kWidth];
    // A little lower, because the limit is rounded; what passes is compared as it is to be.
    for (Index lane = 0; lane < kWidth; ++lane) {
      limits[lane] = factor_[lane] > Float(0) ? below_[lane] / factor_[lane] * Float(1 - 1e-6)
                                              : std::numeric_limits<Float>::infinity();
    }
    for (Index j = 0; j < keys; ++j) {
      for (Index v = 0; v < kWidth; v += kLaneCount) {
        const Floats p = floats_at(tile + j * kWidth + v);
        for (unsigned bits = lane_bits(p > floats_at(limits + v)); bits != 0; bits &= bits - 1) {
          const int lane = std::countr_zero(bits);
          const Float weight = p[lane] * factor_[v + lane];
          if (!(weight > below_[v + lane])) continue;
          hits_.push_back(
              {static_cast<std::int32_t>(v + lane), static_cast<std::int32_t>(key + j), weight});
        }
      }
    }
  }

  // Hits came key by key; counting brings them into the order of queries.
  void store_entries() {
    Index counts[kWidth] = {};
    for (const auto& hit : hits_) ++counts[hit.row];
    Index places[kWidth];
    Index place = static_cast<Index>(entries_.keys.size());
    for (Index lane = 0; lane < kWidth; ++lane) {
      places[lane] = place;
      place += counts[lane];
    }
    entries_.keys.resize(static_cast<std::size_t>(place));
    entries_.weights.resize(static_cast<std::size_t>(place));
    for (const auto& hit : hits_) {
      const Index entry = places[hit.row]++;
      entries_.keys[entry] = hit.key;
      entries_.weights[entry] = hit.weight;
    }
    entries_.counts.insert(entries_.counts.end(), counts, counts + count_);
  }

  void store_top() {
    std::stable_sort(hits_.begin(), hits_.end(), [](const auto& a, const auto& b) {
      return a.row != b.row ? a.row < b.row : a.weight > b.weight;
    });
    auto hit = hits_.begin();
    for (Index lane = 0; lane < count_; ++lane) {
      if (!tiles_.is_real(lane)) continue;
      double* const weights = rows_.top_weights + (query_ + lane) * request_.top;
      std::int64_t* const keys = rows_.top_keys + (query_ + lane) * request_.top;
      std::fill_n(weights, request_.top, non_finite_[lane] ? kNaN : 0.0);
      std::fill_n(keys, request_.top, std::int64_t{-1});
      while (hit != hits_.end() && hit->row < lane) ++hit;
      for (Index k = 0; k < request_.top && hit != hits_.end() && hit->row == lane; ++k, ++hit) {
        weights[k] = hit->weight;
        keys[k] = hit->key;
      }
    }
  }

  const LazyHead& head_;
  const LazyRequest& request_;
  const LazyRows& rows_;
  LazyColumns& columns_;
  LazyEntries& entries_;
  std::vector<LazyWorkspace::Hit>& hits_;
  Tiles tiles_;
  bool stays_;
  Index query_ = 0, count_ = 0;
  Float *weights_, *maxima_, *product_, *ranks_, *left_;
  std::vector<double> first_mass_, near_mass_, beyond_mass_;
  alignas(64) Float max_[kWidth], drop_[kWidth], rise_[kWidth], factor_[kWidth], share_[kWidth],
      below_[kWidth];
  alignas(64) Float tile_mass_[kWidth], tile_entropy_[kWidth], tile_collision_[kWidth],
      tile_distance_[kWidth];
  alignas(64) Float far_max_[kWidth];
  double mass_[kWidth], entropy_[kWidth], collision_[kWidth], distance_[kWidth], far_mass_[kWidth],
      far_squares_[kWidth];
  bool non_finite_[kWidth];
};

}  // namespace

Index lazy_rows(bool exact) { return exact ? kTileWidth<double> : kTileWidth<float>; }

Index lazy_channels(bool exact) { return exact ? kFloatLanes<double> : kFloatLanes<float>; }

namespace {

template <class Float>
void measure_rows(const LazyHead& head, Index begin, Index end, const LazyRequest& request,
                  const LazyRows& rows, LazyColumns& columns, LazyEntries& entries,
                  LazyWorkspace& workspace) {
  ScoreTiles<Float> tiles(head, workspace.packed, workspace.widened);
  BlockMeasures<Float, ScoreTiles<Float>>(std::move(tiles), head, request, rows, columns, entries,
                                          workspace)
      .run(begin, end);
}

template <class Float>
void measure_mean_rows(const LazyHeads& heads, Index begin, Index end, const LazyRequest& request,
                       const LazyRows& rows, LazyColumns& columns, LazyEntries& entries,
                       LazyWorkspace& workspace) {
  LazyMeanTiles<Float> tiles(heads, workspace.of_heads);
  BlockMeasures<Float, LazyMeanTiles<Float>>(std::move(tiles), heads.heads[0], request, rows,
                                             columns, entries, workspace)
      .run(begin, end);
}

void clear_sums(Index keys, const LazyRequest& request, LazyColumns& columns,
                LazyEntries& entries) {
  columns.incoming.assign(request.columns ? keys : 0, 0.0);
  columns.squares.assign(request.columns ? keys : 0, 0.0);
  columns.far_incoming.assign(request.columns && request.far > 0 ? keys : 0, 0.0);
  columns.product.clear();
  entries = {};
}

}  // namespace

void measure_lazy_rows(const LazyHead& head, Index begin, Index end, const LazyRequest& request,
                       const LazyRows& rows, LazyColumns& columns, LazyEntries& entries,
                       LazyWorkspace& workspace) {
  assert(begin % lazy_rows(request.exact) == 0);
  clear_sums(head.keys, request, columns, entries);
  if (request.exact) {
    measure_rows<double>(head, begin, end, request, rows, columns, entries, workspace);
  } else {
    measure_rows<float>(head, begin, end, request, rows, columns, entries, workspace);
  }
}

void measure_lazy_mean_rows(const LazyHeads& heads, Index begin, Index end,
                            const LazyRequest& request, const LazyRows& rows, LazyColumns& columns,
                            LazyEntries& entries, LazyWorkspace& workspace) {
  assert(begin % lazy_rows(request.exact) == 0 && heads.count > 0);
  clear_sums(heads.heads[0].keys, request, columns, entries);
  if (request.exact) {
    measure_mean_rows<double>(heads, begin, end, request, rows, columns, entries, workspace);
  } else {
    measure_mean_rows<float>(heads, begin, end, request, rows, columns, entries, workspace);
  }
}

namespace {

template <class Float>
void write_tile(const LazyHead& head, Index begin, Index end, Index start, Index stop,
                const double* log_z, double* out, LazyWorkspace& workspace) {
  const LazyRequest request;
  const LazyRows rows;
  LazyColumns columns;
  LazyEntries entries;
  ScoreTiles<Float> tiles(head, workspace.packed, workspace.widened);
  BlockMeasures<Float, ScoreTiles<Float>>(std::move(tiles), head, request, rows, columns, entries,
                                          workspace)
      .write_tile(begin, end, start, stop, log_z, out);
}

}  // namespace

void lazy_tile(const LazyHead& head, Index begin, Index end, Index start, Index stop, bool exact,
               const double* log_z, double* out, LazyWorkspace& workspace) {
  if (exact) {
    write_tile<double>(head, begin, end, start, stop, log_z, out, workspace);
  } else {
    write_tile<float>(head, begin, end, start, stop, log_z, out, workspace);
  }
}

}  // namespace attnscope
