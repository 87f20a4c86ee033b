// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "linalg/lazy/lazy_head.h"
#include "linalg/tile_products.h"
#include "matrix/rows.h"

// Scores of a block of queries, tile by tile of keys. Only kernel sources include it.
namespace attnscope {

// Keys of a tile: a multiple of kTileKeys, of kExpSteps and of the lanes of a vector.
inline constexpr Index kScoreTile = 96;

// Vectors whose exponentials are taken side by side; a tile's keys are filled up to a multiple of
// it.
inline constexpr Index kExpSteps = 4;

// kTileWidth queries stand side by side in lanes, and keys come one after another, so that what is
// added up per query needs no sum over lanes. Queries are turned once a block, with the scaling and
// log2 e in them; keys are read as they lie, because their entries are broadcast.
template <class Float>
class ScoreTiles {
 public:
  static constexpr Index kLaneCount = kFloatLanes<Float>;
  static constexpr Index kWidth = kTileWidth<Float>;
  // The score of an invisible key; finite, so that a weight of 0 times it is 0.
  static constexpr Float kHidden = Float(-1e38);
  static constexpr double kLog2 = 0.69314718055994530942;

  ScoreTiles(const LazyHead& head, AlignedBuffer& packed, AlignedBuffer& widened)
      : head_(head),
        packed_(
            reinterpret_cast<Float*>(packed.resize(bytes_of(kWidth * (head.width + kLaneCount))))),
        widened_(reinterpret_cast<Float*>(widened.resize(bytes_of(kScoreTile * head.width)))),
        pairs_(takes_pairs(head)) {}

  // Takes up to kWidth queries from `begin` on; lanes past them, and of padding, hold zeros.
  void start(Index begin, Index count) {
    begin_ = begin;
    count_ = count;
    nearest_ = std::numeric_limits<Index>::max();
    farthest_ = std::numeric_limits<Index>::min();
    for (Index lane = 0; lane < kWidth; ++lane) {
      const Index query = begin + std::min(lane, count - 1);
      real_[lane] = lane < count && !head_.is_padding(query);
      const Index position = head_.position(query);
      positions_[lane] = static_cast<Float>(position);
      if (!real_[lane]) continue;
      nearest_ = std::min(nearest_, position);
      farthest_ = std::max(farthest_, position);
    }
    if (nearest_ > farthest_) nearest_ = farthest_ = -1;
    has_idle_ = std::find(real_, real_ + kWidth, false) != real_ + kWidth;
    pack();
  }

  bool is_real(Index lane) const { return real_[lane]; }

  // Logarithm, to base 2, of what the learned sink adds to the sum of a query's weights.
  double sink_score(Index) const { return head_.sink_logit / kLog2; }

  // Called when all tiles of a block have been taken; they may be taken once more.
  void finish() {}

  // Keys [first, last) are those that some query of the block may see; `first` is a multiple of the
  // tile.
  Index first_key() const {
    if (head_.window == 0) return 0;
    return std::max<Index>(0, nearest_ - head_.window + 1) / kScoreTile * kScoreTile;
  }
  Index last_key() const {
    return head_.sees_no_later() ? std::min(head_.length, farthest_ + head_.latest() + 1)
                                 : head_.length;
  }

  // Positions of the queries in a vector of lanes, less that of a key.
  FloatsOf<Float> distances(Index first_lane, Index key) const {
    return floats_at(positions_ + first_lane) - static_cast<Float>(key);
  }
  // The smallest and largest |i − j| between queries of the block and keys [start, stop).
  Index smallest_distance(Index start, Index stop) const {
    if (nearest_ >= stop) return nearest_ - stop + 1;
    return farthest_ < start ? start - farthest_ : 0;
  }
  Index largest_distance(Index start, Index stop) const {
    return std::max(farthest_ - start, stop - 1 - nearest_);
  }

  // Scores of keys [start, start + count) times log2 e; kHidden where invisible, and up to a whole
  // number of steps.
  void scores(Index start, Index count, Float* tile) {
    multiply(start, count, tile);
    if (head_.softcap > 0.0) cap(count, tile);
    if (head_.slope != 0.0) lean(start, count, tile);
    if (head_.bias.data != nullptr) add_bias(start, count, tile);
    hide_far(start, count, tile);
    if (head_.mask != nullptr) hide_masked(start, count, tile);
    if (has_idle_) hide_idle(count, tile);
    std::fill(tile + count * kWidth,
              tile + (count + kExpSteps - 1) / kExpSteps * kExpSteps * kWidth, kHidden);
  }

 private:
  static Index bytes_of(Index numbers) {
    return (numbers * static_cast<Index>(sizeof(Float)) + 7) / 8;  // in float64 numbers of a buffer
  }

  // True where queries and keys are bfloat16 and the processor multiplies pairs of them, exactly in
  // float32.
  static bool takes_pairs([[maybe_unused]] const LazyHead& head) {
#if defined(ATTNSCOPE_BFLOAT_PAIRS)
    const auto is_paired = [](const NumberRows& rows) {
      return rows.type == VectorType::bfloat16 && rows.column_stride == 1;
    };
    return std::is_same_v<Float, float> && head.width % 2 == 0 && is_paired(head.query) &&
           is_paired(head.key) && multiplies_pairs();
#else
    return false;
#endif
  }

  template <class Visit>
  static void visit_rows(const NumberRows& rows, Visit&& visit) {
    switch (rows.type) {
      case VectorType::float16:
        return visit(static_cast<const Eigen::half*>(rows.data));
      case VectorType::bfloat16:
        return visit(static_cast<const Eigen::bfloat16*>(rows.data));
      case VectorType::float32:
        return visit(static_cast<const float*>(rows.data));
      case VectorType::float64:
        return visit(static_cast<const double*>(rows.data));
    }
  }

  // `count` numbers of a row, widened or rounded to Float. A stride that is known to be 1 makes it
  // a loop of vectors.
  template <class Scalar>
  static void convert(const Scalar* from, Index stride, Index count, Float* to) {
    if (stride != 1) {
      for (Index k = 0; k < count; ++k) to[k] = static_cast<Float>(from[k * stride]);
      return;
    }
    Index k = 0;
    if constexpr (std::is_same_v<Scalar, Eigen::bfloat16>) {
      for (; k < count; ++k) {
        std::uint16_t half;
        std::memcpy(&half, from + k, sizeof(half));
        const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
        float number;
        std::memcpy(&number, &bits, sizeof(number));
        to[k] = static_cast<Float>(number);
      }
    }
#if defined(__AVX512F__) && ATTNSCOPE_PACK_WIDTH == 8
    if constexpr (std::is_same_v<Scalar, Eigen::half> && std::is_same_v<Float, float>) {
      for (; k + 16 <= count; k += 16) {
        const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + k));
        _mm512_storeu_ps(to + k, _mm512_cvtph_ps(halves));
      }
    }
#elif defined(__F16C__)
    if constexpr (std::is_same_v<Scalar, Eigen::half> && std::is_same_v<Float, float>) {
      for (; k + 8 <= count; k += 8) {
        const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + k));
        _mm256_storeu_ps(to + k, _mm256_cvtph_ps(halves));
      }
    }
#endif
    if constexpr (std::is_same_v<Scalar, float> && std::is_same_v<Float, double>) {
      for (; k + kPackWidth <= count; k += kPackWidth) store(to + k, load(from + k));
    }
    for (; k < count; ++k) to[k] = static_cast<Float>(from[k]);
  }

  void pack() {
    if (pairs_) return pack_pairs();
    const Float scale = static_cast<Float>(head_.scaling / kLog2);
    alignas(64) Float square[kLaneCount * kLaneCount];
    visit_rows(head_.query, [&](const auto* query) {
      for (Index first = 0; first < kWidth; first += kLaneCount) {
        for (Index k = 0; k < head_.width; k += kLaneCount) {
          const Index terms = std::min(kLaneCount, head_.width - k);
          FloatsOf<Float> x[kLaneCount];
          std::fill_n(square, kLaneCount * kLaneCount, Float(0));
          for (Index lane = 0; lane < kLaneCount; ++lane) {
            if (real_[first + lane]) {
              const auto* const from = query + (begin_ + first + lane) * head_.query.row_stride +
                                       k * head_.query.column_stride;
              convert(from, head_.query.column_stride, terms, square + lane * kLaneCount);
            }
            x[lane] = floats_at(square + lane * kLaneCount) * scale;
          }
          turn_lanes<Float, false>(x);
          for (Index term = 0; term < kLaneCount; ++term)
            put(packed_ + (k + term) * kWidth + first, x[term]);
        }
      }
    });
  }

  // Pairs of bfloat16 numbers of a query in a lane, as they lie: the scaling comes after the
  // product.
  void pack_pairs() {
    auto* const packed = reinterpret_cast<std::uint32_t*>(packed_);
    const auto* const query = static_cast<const Eigen::bfloat16*>(head_.query.data);
    for (Index lane = 0; lane < kWidth; ++lane) {
      for (Index k = 0; 2 * k < head_.width; ++k) {
        std::uint32_t pair = 0;
        if (real_[lane]) {
          std::memcpy(&pair, query + (begin_ + lane) * head_.query.row_stride + 2 * k,
                      sizeof(pair));
        }
        packed[k * kWidth + lane] = pair;
      }
    }
  }

  void multiply(Index start, Index count, Float* tile) {
#if defined(ATTNSCOPE_BFLOAT_PAIRS)
    if constexpr (std::is_same_v<Float, float>) {
      if (pairs_) {
        const auto* const keys = static_cast<const std::uint16_t*>(head_.key.data);
        return multiply_pairs(reinterpret_cast<const std::uint32_t*>(packed_), head_.width / 2,
                              keys + start * head_.key.row_stride, head_.key.row_stride, count,
                              static_cast<float>(head_.scaling / kLog2), tile);
      }
    }
#endif
    const NumberRows& key = head_.key;
    const bool is_float = key.type == VectorType::float32;
    const bool in_place =
        (is_float ? std::is_same_v<Float, float>
                  : key.type == VectorType::float64 && std::is_same_v<Float, double>) &&
        key.column_stride == 1;
    const Float* rows = widened_;
    Index stride = head_.width;
    if (in_place) {
      rows = static_cast<const Float*>(key.data) + start * key.row_stride;
      stride = key.row_stride;
    } else {
      visit_rows(key, [&](const auto* keys) {
        for (Index j = 0; j < count; ++j) {
          convert(keys + (start + j) * key.row_stride, key.column_stride, head_.width,
                  widened_ + j * head_.width);
        }
      });
    }
    const Index ahead = in_place ? head_.width * static_cast<Index>(sizeof(Float)) : 0;
    multiply_tile<Float, kTileVectors, kTileKeys>(packed_, kWidth, head_.width, rows, stride, count,
                                                  tile, kWidth, false, ahead);
  }

  // tanh |x| = (1 − u)/(1 + u), u = e^(−2|x|)
  void cap(Index count, Float* tile) const {
    const Float limit = static_cast<Float>(head_.softcap / kLog2);
    const Float rate = static_cast<Float>(2.0 / head_.softcap);
    for (Index k = 0; k < count * kWidth; k += kLaneCount) {
      const FloatsOf<Float> s = floats_at(tile + k);
      const FloatsOf<Float> u = power_of_two<Float>(-magnitude_of<Float>(s) * rate);
      const FloatsOf<Float> capped = limit * (Float(1) - u) / (Float(1) + u);
      put(tile + k, s < Float(0) ? -capped : capped);
    }
  }

  void lean(Index start, Index count, Float* tile) const {
    const Float slope = static_cast<Float>(head_.slope / kLog2);
    for (Index j = 0; j < count; ++j) {
      for (Index v = 0; v < kWidth; v += kLaneCount) {
        Float* const score = tile + j * kWidth + v;
        put(score, floats_at(score) - magnitude_of<Float>(distances(v, start + j)) * slope);
      }
    }
  }

  // −infinity, and what a model adds in its place, hides a key.
  void add_bias(Index start, Index count, Float* tile) const {
    const Float unit = static_cast<Float>(1.0 / kLog2);
    visit_rows(head_.bias, [&](const auto* bias) {
      Float row[kScoreTile];
      for (Index lane = 0; lane < count_; ++lane) {
        if (!real_[lane]) continue;
        const auto* const from =
            bias + (begin_ + lane) * head_.bias.row_stride + start * head_.bias.column_stride;
        convert(from, head_.bias.column_stride, count, row);
        for (Index j = 0; j < count; ++j) {
          const Float score = tile[j * kWidth + lane] + row[j] * unit;
          tile[j * kWidth + lane] = score < kHidden ? kHidden : score;
        }
      }
    });
  }

  // Keys up to the last that the nearest query sees are too late for no query, and those within
  // the window of the farthest are within every query's.
  void hide_far(Index start, Index count, Float* tile) const {
    const Index behind =
        head_.window > 0 ? std::clamp<Index>(farthest_ - head_.window + 1 - start, 0, count) : 0;
    const Index before =
        head_.sees_no_later()
            ? std::clamp<Index>(nearest_ + head_.latest() + 1 - start, behind, count)
            : count;
    for (Index j = 0; j < behind; ++j) hide(start + j, tile + j * kWidth);
    for (Index j = before; j < count; ++j) hide(start + j, tile + j * kWidth);
  }

  void hide(Index key, Float* scores) const {
    const Float earliest = head_.sees_no_later() ? static_cast<Float>(-head_.latest())
                                                 : -std::numeric_limits<Float>::infinity();
    const Float window = head_.window > 0 ? static_cast<Float>(head_.window)
                                          : std::numeric_limits<Float>::infinity();
    for (Index v = 0; v < kWidth; v += kLaneCount) {
      const FloatsOf<Float> distance = distances(v, key);
      const FloatsOf<Float> within =
          distance < earliest ? broadcast_as(kHidden) : floats_at(scores + v);
      put(scores + v, distance >= window ? broadcast_as(kHidden) : within);
    }
  }

  void hide_masked(Index start, Index count, Float* tile) const {
    for (Index lane = 0; lane < count_; ++lane) {
      const bool* const row =
          head_.mask + (begin_ + lane) * head_.mask_row_stride + start * head_.mask_column_stride;
      for (Index j = 0; j < count; ++j) {
        if (!row[j * head_.mask_column_stride]) tile[j * kWidth + lane] = kHidden;
      }
    }
  }

  // Lanes without a query see nothing, a key that is NaN neither.
  void hide_idle(Index count, Float* tile) const {
    for (Index lane = 0; lane < kWidth; ++lane) {
      if (real_[lane]) continue;
      for (Index j = 0; j < count; ++j) tile[j * kWidth + lane] = kHidden;
    }
  }

  const LazyHead& head_;
  Float* packed_;
  Float* widened_;
  Index begin_ = 0, count_ = 0, nearest_ = 0, farthest_ = 0;
  alignas(64) Float positions_[kWidth];
  bool real_[kWidth];
  bool has_idle_ = false;
  bool pairs_ = false;
};

}  // namespace attnscope
