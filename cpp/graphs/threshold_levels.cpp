// SPDX-License-Identifier: MIT
#include "graphs/threshold_levels.h"

#include <algorithm>
#include <cstring>

#include "matrix/rows.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

typedef Level Bytes __attribute__((vector_size(kVectorBytes)));
typedef signed char SignedBytes __attribute__((vector_size(kVectorBytes)));
constexpr auto kBytes = static_cast<Index>(kVectorBytes);
static_assert(kLevelBlock % kBytes == 0);

// Comparing signed bytes is one instruction.
SignedBytes as_signed(Bytes levels) { return reinterpret_cast<SignedBytes>(levels ^ Level{0x80}); }
SignedBytes as_signed(Level level) {
  return static_cast<signed char>(level ^ Level{0x80}) - SignedBytes{};
}

// Four vectors at a time, so that their counts stay in registers.
template <class WideType>
void levels_of(const WideType* row, Index n, const std::vector<WideType>& thresholds,
               Level* levels) {
  using Floats = typename VectorOf<WideType>::Floats;
  using Numbers = typename VectorOf<WideType>::Numbers;
  constexpr auto kWidth = static_cast<Index>(kLanes<WideType>);
  constexpr Index kBlock = 4 * kWidth;
  for (Index begin = 0; begin < n; begin += kBlock) {
    const Index size = std::min(kBlock, n - begin);
    WideType rest[kBlock] = {};
    const WideType* from = row + begin;
    if (size < kBlock) {
      std::copy(from, from + size, rest);
      from = rest;
    }
    Floats x[4];
    Numbers reached[4] = {};
    for (Index v = 0; v < 4; ++v) x[v] = vector_at<Floats>(from + v * kWidth);
    const auto count = [&](WideType threshold) {
#pragma GCC unroll 4
      for (Index v = 0; v < 4; ++v) {
        // Named, because clang's comparison of doubles gives a vector of another whole number.
        const Numbers reaches = x[v] >= threshold;
        reached[v] -= reaches;
      }
    };
    count(thresholds[0]);
    // Causal maps and those with a sink have few entries that reach any threshold.
    if (lane_bits(-(reached[0] | reached[1] | reached[2] | reached[3])) == 0) continue;
    for (std::size_t t = 1; t < thresholds.size(); ++t) count(thresholds[t]);
    std::remove_reference_t<decltype(reached[0][0])> counts[kBlock];
    for (Index v = 0; v < 4; ++v) put(counts + v * kWidth, reached[v]);
    for (Index k = 0; k < size; ++k) levels[begin + k] = static_cast<Level>(counts[k]);
  }
}

constexpr Index kByteTile = 8;
static_assert(kLevelBlock % kByteTile == 0);

// Eight rows of eight bytes, the first byte in the lowest bits, turned about their diagonal:
// halves, then quarters, then eighths change places.
void transpose(std::uint64_t* rows) {
  constexpr std::uint64_t kKeep[3] = {0x00000000ffffffffu, 0x0000ffff0000ffffu,
                                      0x00ff00ff00ff00ffu};
  for (int stage = 0; stage < 3; ++stage) {
    const int apart = 4 >> stage;
    const int shift = 8 * apart;
    for (int r = 0; r < kByteTile; ++r) {
      if ((r & apart) != 0) continue;
      const std::uint64_t swapped = ((rows[r] >> shift) ^ rows[r + apart]) & kKeep[stage];
      rows[r] ^= swapped << shift;
      rows[r + apart] ^= swapped;
    }
  }
}

void load_tile(const LevelTable& table, Index i, Index j, std::uint64_t* rows) {
  for (Index r = 0; r < kByteTile; ++r) std::memcpy(rows + r, table.row(i + r) + j, kByteTile);
}

void store_tile(LevelTable& table, Index i, Index j, const std::uint64_t* rows) {
  for (Index r = 0; r < kByteTile; ++r) std::memcpy(table.row(i + r) + j, rows + r, kByteTile);
}

}  // namespace

void LevelTable::resize(Index size) {
  n = size;
  stride = (size + kLevelBlock - 1) / kLevelBlock * kLevelBlock;
  entries.assign(stride * stride, 0);
}

template <class Scalar>
void read_levels(const MatrixView<Scalar>& attention, const double* thresholds, Index count,
                 LevelTable& directed, RowScratch& scratch) {
  const Index n = attention.rows();
  std::vector<Wide<Scalar>> levels(count);
  std::transform(thresholds, thresholds + count, levels.begin(), rounded_up<Wide<Scalar>>);
  directed.resize(n);
  RowReader<Scalar> reader(attention, Support{}, scratch);
  for (Index i = 0; i < n; ++i) {
    levels_of(reader.row(i), n, levels, directed.row(i));
    directed.row(i)[i] = 0;
  }
}

void symmetrize_levels(const LevelTable& directed, LevelTable& level) {
  level.resize(directed.n);
  for (Index i = 0; i < directed.n; i += kByteTile) {
    for (Index j = 0; j <= i; j += kByteTile) {
      std::uint64_t tile[kByteTile], mirror[kByteTile];
      load_tile(directed, i, j, tile);
      load_tile(directed, j, i, mirror);
      transpose(mirror);
      auto* const a = reinterpret_cast<Level*>(tile);
      const auto* const b = reinterpret_cast<const Level*>(mirror);
      for (Index k = 0; k < kByteTile * kByteTile; ++k) a[k] = std::max(a[k], b[k]);
      store_tile(level, i, j, tile);
      if (i == j) continue;
      transpose(tile);
      store_tile(level, j, i, tile);
    }
  }
}

void transpose_levels(const LevelTable& directed, LevelTable& turned) {
  turned.resize(directed.n);
  for (Index i = 0; i < directed.n; i += kByteTile) {
    for (Index j = 0; j < directed.n; j += kByteTile) {
      std::uint64_t tile[kByteTile];
      load_tile(directed, i, j, tile);
      transpose(tile);
      store_tile(turned, j, i, tile);
    }
  }
}

// Bytes are counted first, 32 and more to a vector and eight thresholds in registers, and carried
// over before any can pass 255.
void count_levels(const LevelTable& table, Index count, std::vector<std::int64_t>& counts) {
  const Index n = table.n;
  counts.assign(count * n, 0);
  constexpr Index kTogether = 8;
  for (Index t0 = 0; t0 < count; t0 += kTogether) {
    for (Index j0 = 0; j0 < n; j0 += kBytes) {
      for (Index begin = 0; begin < n; begin += 255) {
        const Index end = std::min(begin + 255, n);
        SignedBytes reached[kTogether];
        Bytes counter[kTogether] = {};
        for (Index t = 0; t < kTogether; ++t) {
          reached[t] = as_signed(static_cast<Level>(std::min(t0 + t, kMostLevels)));
        }
        for (Index i = begin; i < end; ++i) {
          const SignedBytes levels = as_signed(vector_at<Bytes>(table.row(i) + j0));
#pragma GCC unroll 8
          for (Index t = 0; t < kTogether; ++t) {
            counter[t] -= reinterpret_cast<Bytes>(levels > reached[t]);
          }
        }
        for (Index t = 0; t < std::min(kTogether, count - t0); ++t) {
          std::int64_t* of_threshold = counts.data() + (t0 + t) * n + j0;
          for (Index j = 0; j < std::min(kBytes, n - j0); ++j) of_threshold[j] += counter[t][j];
        }
      }
    }
  }
}

// From one maximum spanning tree of the levels: an edge of the tree with level > t joins two
// components of graph t.
void count_level_components(const LevelTable& level, Index count, LevelSearch& search,
                            std::vector<std::int64_t>& components) {
  const Index n = level.n;
  components.assign(count, n);
  std::vector<Level>& best = search.best;
  std::vector<Level>& open = search.open;
  best.assign(level.stride, 0);
  open.assign(level.stride, 0);
  std::fill(open.begin(), open.begin() + n, Level{0xff});
  Index node = 0;
  for (Index step = 1; step < n; ++step) {
    open[node] = 0;
    const Level* row = level.row(node);
    Bytes top{};
    for (Index j = 0; j < level.stride; j += kBytes) {
      const Bytes old = vector_at<Bytes>(best.data() + j), edge = vector_at<Bytes>(row + j);
      const Bytes larger = (old > edge ? old : edge) & vector_at<Bytes>(open.data() + j);
      put(best.data() + j, larger);
      top = larger > top ? larger : top;
    }
    Level most = 0;
    for (Index k = 0; k < kBytes; ++k) most = std::max(most, top[k]);
    const Level* from = most > 0 ? best.data() : open.data();
    node = static_cast<const Level*>(
               std::memchr(from, most > 0 ? most : 0xff, static_cast<std::size_t>(n))) -
           from;
    for (Index t = 0; t < most; ++t) --components[t];
  }
}

std::uint64_t bits_above(const Level* levels, Level above) {
  std::uint64_t bits = 0;
#if defined(__AVX2__)
  const __m256i limit = _mm256_set1_epi8(static_cast<char>(above ^ 0x80));
  const __m256i flip = _mm256_set1_epi8(static_cast<char>(0x80));
  for (int half = 0; half < 2; ++half) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(levels + 32 * half));
    const int mask = _mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_xor_si256(x, flip), limit));
    bits |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(mask)) << (32 * half);
  }
#else
  for (int k = 0; k < 64; ++k) bits |= static_cast<std::uint64_t>(levels[k] > above) << k;
#endif
  return bits;
}

ATTNSCOPE_COMPILE(read_levels);

}  // namespace attnscope
