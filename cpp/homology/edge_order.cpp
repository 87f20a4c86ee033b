// SPDX-License-Identifier: MIT
#include "homology/edge_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>

#include "homology/rank_sort.h"
#include "matrix/radix_sort.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

// The float type whose bits make a key of this width.
template <class Key>
using FloatOf = std::conditional_t<std::is_same_v<Key, std::uint64_t>, double, float>;

template <class Key>
inline constexpr Key kOne = std::bit_cast<Key>(FloatOf<Key>(1));

// Keys grow as weights fall: 0 for every weight >= 1. Bits of floats of one sign are in the order
// of the floats; both zeros give the same key.
template <class Key>
Key key_of_weight(FloatOf<Key> weight) {
  using Signed = std::make_signed_t<Key>;
  const auto bits = std::bit_cast<Signed>(weight);
  const Signed magnitude = bits & std::numeric_limits<Signed>::max();
  const Signed ordered = bits < 0 ? -magnitude : magnitude;
  const Signed one = static_cast<Signed>(kOne<Key>);
  return kOne<Key> - static_cast<Key>(ordered < one ? ordered : one);
}

template <class Key>
FloatOf<Key> weight_of_key(Key key) {
  if (key <= kOne<Key>) return std::bit_cast<FloatOf<Key>>(static_cast<Key>(kOne<Key> - key));
  return -std::bit_cast<FloatOf<Key>>(static_cast<Key>(key - kOne<Key>));
}

// Bits of distances, which are not negative, are in their order already; −0 counts as 0.
template <class Key>
Key key_of_distance(FloatOf<Key> distance) {
  return std::bit_cast<Key>(distance) &
         static_cast<Key>(std::numeric_limits<std::make_signed_t<Key>>::max());
}

// Writes the entries of `count` keys of consecutive edges that lie in [from, to] behind each other
// from `out` on, and returns where they end. It may write up to kOverrun entries more.
constexpr std::size_t kOverrun = 8;
template <class Key, class Entry>
Entry* append_keys(const Key* keys, std::size_t count, Edge first, Key from, Key to, Entry* out) {
  const Key width = to - from;
  std::size_t k = 0;
#if defined(ATTNSCOPE_AVX512_PACKS)
  if constexpr (sizeof(Entry) == 8) {
    static_assert(offsetof(Entry, edge) == 0 && offsetof(Entry, key) == 4);
    const __m512i low = _mm512_set1_epi64(from), range = _mm512_set1_epi64(width);
    __m512i edges =
        _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
    for (; k + 8 <= count; k += 8) {
      const __m256i eight = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + k));
      const __m512i wide = _mm512_cvtepu32_epi64(eight);
      // A key below `from` is as good as far above it.
      const __mmask8 chosen = _mm512_cmple_epu64_mask(_mm512_sub_epi64(wide, low), range);
      const __m512i entries = _mm512_or_si512(_mm512_slli_epi64(wide, 32), edges);
      _mm512_storeu_si512(out, _mm512_maskz_compress_epi64(chosen, entries));
      out += std::popcount(static_cast<unsigned>(chosen));
      edges = _mm512_add_epi64(edges, _mm512_set1_epi64(8));
    }
  }
#endif
  for (; k < count; ++k) {
    *out = {first + static_cast<Edge>(k), keys[k]};
    out += static_cast<Key>(keys[k] - from) <= width ? 1 : 0;
  }
  return out;
}

// Rows of the transpose that are read together: a cache line of float32.
constexpr Index kColumnsAtOnce = 16;

// The first batch aims at kFirst sixteenths of all pairs and later ones at kLater; keys are sampled
// to know where that is. Few pairs are one batch.
constexpr std::size_t kFirst = 5;
constexpr std::size_t kLater = 2;
constexpr std::size_t kSample = 128;
constexpr std::size_t kOneBatch = 1024;

// Vertices up to which counting those before each beats a sort.
constexpr std::size_t kFewVertices = 512;

}  // namespace

// Stores the keys of `row` to all smaller columns, and what they say about both ends.
template <class Key>
void EdgeOrder::take_row(Sorter<Key>& sorter, Index row, const Key* __restrict__ row_keys) {
  constexpr int kCoarse = std::numeric_limits<Key>::digits - 16;
  Key* __restrict__ triangle = sorter.triangle.data() + row * (row - 1) / 2;
  Key* __restrict__ farthest = sorter.farthest.data();
  std::uint32_t* __restrict__ remoteness = remoteness_.data();
  Key largest = 0;
  std::uint32_t sum = 0;
  for (Index j = 0; j < row; ++j) {
    const Key key = row_keys[j];
    triangle[j] = key;
    largest = std::max(largest, key);
    farthest[j] = std::max(farthest[j], key);
    const auto coarse = static_cast<std::uint32_t>(key >> kCoarse);
    remoteness[j] += coarse;
    sum += coarse;
  }
  farthest[row] = largest;
  remoteness[row] = sum;
}

template <class Key, class Scalar, class KeyOf>
void EdgeOrder::fill(Sorter<Key>& sorter, const MatrixView<Scalar>& attention, bool causal,
                     KeyOf key_of) {
  using Float = FloatOf<Key>;
  const MatrixView<Scalar> lines =
      along_memory(attention);  // a key is a symmetric function of A, Aᵀ
  const Index outer = lines.outerStride();
  const Index inner = lines.innerStride();
  const Scalar* data = lines.data();
  Key* __restrict__ row = sorter.row.data();
  if (inner == 1 && causal && lines_are_rows(attention)) {
    for (Index i = 1; i < n_; ++i) {
      const Scalar* source = data + i * outer;
      for (Index j = 0; j < i; ++j) row[j] = key_of(static_cast<Float>(source[j]), Float(0));
      take_row(sorter, i, row);
    }
    return;
  }
  sorter.columns.resize(n_ * kColumnsAtOnce);
  for (Index first = 0; first < n_; first += kColumnsAtOnce) {
    const Index last = std::min(first + kColumnsAtOnce, n_);
    for (Index j = 0; j + 1 < last; ++j) {
      const Scalar* source = data + j * outer;
      for (Index i = std::max(first, j + 1); i < last; ++i) {
        sorter.columns[(i - first) * n_ + j] =
            std::bit_cast<Key>(static_cast<Float>(source[i * inner]));
      }
    }
    for (Index i = std::max<Index>(first, 1); i < last; ++i) {
      const Scalar* source = data + i * outer;
      const Key* column = sorter.columns.data() + (i - first) * n_;
      for (Index j = 0; j < i; ++j) {
        const Float a = static_cast<Float>(source[j * inner]);
        row[j] = key_of(a, std::bit_cast<Float>(column[j]));
      }
      take_row(sorter, i, row);
    }
  }
}

template <class Scalar>
void hellinger_rows(const MatrixView<Scalar>& attention, std::vector<double>& roots,
                    const std::function<void(Index, Index, double)>& visit) {
  const Index n = attention.rows();
  roots.resize(n * n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      const double entry = static_cast<double>(attention(i, j));
      roots[i * n + j] = entry > 0.0 ? std::sqrt(entry) : 0.0;
    }
  }
  for (Index i = 1; i < n; ++i) {
    for (Index j = 0; j < i; ++j) {
      const Eigen::Map<const Eigen::ArrayXd> a(roots.data() + i * n, n);
      const Eigen::Map<const Eigen::ArrayXd> b(roots.data() + j * n, n);
      const double squares = (a - b).square().sum();
      // Entries far beyond a probability have squares that no number holds, and a distance that one
      // does.
      visit(i, j,
            std::isfinite(squares) ? std::sqrt(0.5 * squares)
                                   : (a - b).matrix().stableNorm() * std::sqrt(0.5));
    }
  }
}

template <class Key>
void EdgeOrder::prepare(Sorter<Key>& sorter) {
  const std::size_t pairs = sorter.triangle.size();
  if (sorter.sorted.size() < pairs + kOverrun) sorter.sorted.resize(pairs + kOverrun);
  if (sorter.scratch.size() < pairs) sorter.scratch.resize(pairs);
  sorter.radius = *std::min_element(sorter.farthest.begin(), sorter.farthest.begin() + n_);
  sorter.sample.clear();
  if (pairs < kOneBatch) return;
  const std::size_t step = std::max<std::size_t>(32, pairs / kSample);
  for (std::size_t k = step / 2; k < pairs; k += step) sorter.sample.push_back(sorter.triangle[k]);
  std::sort(sorter.sample.begin(), sorter.sample.end());
}

template <class Key>
bool EdgeOrder::append(Sorter<Key>& sorter) {
  if (batches_ > 0 && sorter.taken == sorter.radius) return false;
  // Keys in [from, to] make the batch.
  const Key from = batches_ > 0 ? sorter.taken + 1 : 0;
  const std::size_t size = sorter.sample.size();
  const std::size_t part = (kFirst + kLater * batches_) * size / 16;
  // What little would be left is taken too, and of few pairs, which have no sample, everything.
  const bool is_last = part + size / 16 >= size || sorter.sample[part + size / 16] >= sorter.radius;
  Key to = is_last ? sorter.radius : sorter.sample[part];
  to = std::clamp(to, from, sorter.radius);
  ++batches_;
  sorter.taken = to;

  const std::size_t before = edges_.size();
  auto* const batch = sorter.sorted.data() + before;
  auto* out = batch;
  const Key* keys = sorter.triangle.data();
  for (Index i = 1; i < n_; keys += i, ++i) {
    out = append_keys(keys, static_cast<std::size_t>(i), static_cast<Edge>(i << 16), from, to, out);
  }
  const auto count = static_cast<std::size_t>(out - batch);
  Key lowest = std::numeric_limits<Key>::max();
  Key union_of_keys = 0;
  for (std::size_t k = 0; k < count; ++k) {
    lowest = std::min(lowest, batch[k].key);
    union_of_keys |= batch[k].key;
  }
  // The edges come in (row, column) order and the sort is stable, so it need not look at them.
  radix_sort(
      batch, sorter.scratch.data(), count, lowest, union_of_keys,
      [](const auto& entry) { return entry.key; }, counts_);
  edges_.resize(before + count);
  for (std::size_t k = 0; k < count; ++k) edges_[before + k] = batch[k].edge;
  radius_begin_ = static_cast<std::uint32_t>(before + count);
  if (to == sorter.radius) {
    while (radius_begin_ > before && sorter.sorted[radius_begin_ - 1].key == to) {
      --radius_begin_;
    }
  }
  return true;
}

template <class Key>
bool EdgeOrder::has_earlier_path(const Sorter<Key>& sorter, Edge edge) const {
  const std::size_t u = edge_row(edge);
  const std::size_t w = edge_column(edge);
  const auto of_edge = entry(sorter, u, w);
  for (const std::size_t k : vertices_) {
    if (k == u || k == w) continue;
    if (entry(sorter, u, k) < of_edge && entry(sorter, w, k) < of_edge) return true;
  }
  return false;
}

template <class Scalar>
void EdgeOrder::assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric,
                       bool causal) {
  n_ = attention.rows();
  metric_ = metric;
  wide_ = std::is_same_v<Scalar, double> || metric == Metric::hellinger ||
          (metric == Metric::attention && symmetrize == Symmetrize::mean);
  remoteness_.assign(n_, 0);
  edges_.clear();
  radius_begin_ = 0;
  batches_ = 0;
  const auto make_room = [&](auto& sorter) {
    sorter.triangle.resize(n_ * (n_ - 1) / 2);
    sorter.farthest.assign(n_, 0);
    sorter.row.resize(n_);
  };
  wide_ ? make_room(broad_) : make_room(narrow_);
  if (metric == Metric::hellinger) {
    hellinger_rows(attention, roots_, [this](Index i, Index j, double distance) {
      broad_.row[j] = std::bit_cast<std::uint64_t>(distance);
      if (j + 1 == i) take_row(broad_, i, broad_.row.data());
    });
  } else if (metric == Metric::distance) {
    using Own = Wide<Scalar>;
    fill(sorter(Own{}), attention, causal,
         [](Own a, Own b) { return key_of_distance<FloatKey<Own>>(a > b ? a : b); });
  } else {
    with_similarity<Scalar>(symmetrize, metric, [&]<class Float>(Float zero, auto similarity) {
      fill(sorter(zero), attention, causal,
           [=](Float a, Float b) { return key_of_weight<FloatKey<Float>>(similarity(a, b)); });
    });
  }
  wide_ ? prepare(broad_) : prepare(narrow_);
  order_vertices();
}

// From the best connected vertex on, of equally well connected ones by number.
void EdgeOrder::order_vertices() {
  const auto count = static_cast<std::size_t>(n_);
  ranks_.resize(count);
  for (std::size_t k = 0; k < count; ++k) ranks_[k] = std::uint64_t{remoteness_[k]} << 32 | k;
  if (count <= kFewVertices) {
    rank_sort(ranks_.data(), count, scratch_, counts_);
  } else {
    std::ranges::sort(ranks_);
  }
  vertices_.resize(count);
  for (std::size_t k = 0; k < count; ++k) vertices_[k] = static_cast<std::uint16_t>(ranks_[k]);
}

bool EdgeOrder::next() { return wide_ ? append(broad_) : append(narrow_); }

bool EdgeOrder::precedes(Edge a, Edge b) const {
  const auto before = [=](const auto& sorter) {
    return entry(sorter, edge_row(a), edge_column(a)) < entry(sorter, edge_row(b), edge_column(b));
  };
  return wide_ ? before(broad_) : before(narrow_);
}

bool EdgeOrder::enters_with_triangle(Edge edge) const {
  return wide_ ? has_earlier_path(broad_, edge) : has_earlier_path(narrow_, edge);
}

double EdgeOrder::dissimilarity(std::uint32_t index) const {
  const bool weights = metric_ == Metric::attention;
  if (!wide_) {
    const std::uint32_t key = narrow_.sorted[index].key;
    return weights ? 1.0 - static_cast<double>(weight_of_key(key)) : std::bit_cast<float>(key);
  }
  const std::uint64_t key = broad_.sorted[index].key;
  return weights ? 1.0 - weight_of_key(key) : std::bit_cast<double>(key);
}

ATTNSCOPE_COMPILE(hellinger_rows);
#define ATTNSCOPE_INSTANTIATE(Scalar) \
  template void EdgeOrder::assign<Scalar>(const MatrixView<Scalar>&, Symmetrize, Metric, bool);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
