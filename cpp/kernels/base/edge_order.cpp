// SPDX-License-Identifier: MIT
#include "kernels/base/edge_order.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>

namespace attnscope {
namespace {

// The float type whose bits make a key of this width.
template <class Key>
using FloatOf = std::conditional_t<std::is_same_v<Key, std::uint64_t>, double, float>;

template <class Key>
inline constexpr Key kOne = std::bit_cast<Key>(FloatOf<Key>(1));

// Keys grow as weights fall: 0 for every weight >= 1. Bits of floats of one sign are in the order of the
// floats; both zeros give the same key.
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

// Rows of a tile of the transpose that are read together: a cache line of float32.
constexpr Index kTile = 16;

}  // namespace

template <>
EdgeOrder::Keys<std::uint32_t>& EdgeOrder::keys<std::uint32_t>() {
  return narrow_keys_;
}
template <>
EdgeOrder::Keys<std::uint64_t>& EdgeOrder::keys<std::uint64_t>() {
  return wide_keys_;
}

// Stores the keys of `row` to all smaller columns, and what they say about both ends.
template <class Key>
void EdgeOrder::take_row(Index row, const Key* row_keys) {
  constexpr int kCoarse = std::numeric_limits<Key>::digits - 16;
  Keys<Key>& store = keys<Key>();
  Key* triangle = store.triangle.data() + row * (row - 1) / 2;
  Key* farthest = store.farthest.data();
  std::uint32_t* remoteness = remoteness_.data();
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

template <class Key, class Scalar, class Combine>
void EdgeOrder::fill(const MatrixView<Scalar>& attention, Combine combine) {
  using Float = FloatOf<Key>;
  // A symmetric function of A and its transpose: the walk may follow whichever is contiguous.
  const bool by_rows = attention.innerStride() <= attention.outerStride();
  const Index outer = by_rows ? attention.outerStride() : attention.innerStride();
  const Index inner = by_rows ? attention.innerStride() : attention.outerStride();
  const Scalar* data = attention.data();
  Keys<Key>& store = keys<Key>();
  store.row.resize(static_cast<std::size_t>(n_));
  store.columns.resize(static_cast<std::size_t>(n_ * kTile));
  for (Index first = 0; first < n_; first += kTile) {
    const Index last = std::min(first + kTile, n_);
    for (Index j = 0; j + 1 < last; ++j) {
      const Scalar* source = data + j * outer;
      for (Index i = std::max(first, j + 1); i < last; ++i) {
        store.columns[(i - first) * n_ + j] =
            std::bit_cast<Key>(static_cast<Float>(source[i * inner]));
      }
    }
    for (Index i = std::max<Index>(first, 1); i < last; ++i) {
      const Scalar* source = data + i * outer;
      const Key* column = store.columns.data() + (i - first) * n_;
      Key* row = store.row.data();
      for (Index j = 0; j < i; ++j) {
        const Float a = static_cast<Float>(source[j * inner]);
        row[j] = key_of_weight<Key>(combine(a, std::bit_cast<Float>(column[j])));
      }
      take_row(i, row);
    }
  }
}

template <class Scalar>
void EdgeOrder::fill_hellinger(const MatrixView<Scalar>& attention) {
  roots_.resize(static_cast<std::size_t>(n_ * n_));
  for (Index i = 0; i < n_; ++i) {
    for (Index j = 0; j < n_; ++j) {
      const double entry = static_cast<double>(attention(i, j));
      roots_[i * n_ + j] = entry > 0.0 ? std::sqrt(entry) : 0.0;
    }
  }
  wide_keys_.row.resize(static_cast<std::size_t>(n_));
  for (Index i = 1; i < n_; ++i) {
    for (Index j = 0; j < i; ++j) {
      const Eigen::Map<const Eigen::ArrayXd> a(roots_.data() + i * n_, n_);
      const Eigen::Map<const Eigen::ArrayXd> b(roots_.data() + j * n_, n_);
      wide_keys_.row[j] = std::bit_cast<std::uint64_t>(std::sqrt(0.5 * (a - b).square().sum()));
    }
    take_row(i, wide_keys_.row.data());
  }
}

// One pass shares the edges out over buckets of equal width in the key; a bucket holds a few edges and is
// sorted by itself. Keys are logarithms of weights, nearly, so the buckets fill evenly.
template <class Key, class Entry>
void EdgeOrder::sort(std::vector<Entry>& entries) {
  const std::vector<Key>& triangle = keys<Key>().triangle;
  const Key radius = *std::min_element(keys<Key>().farthest.begin(),
                                       keys<Key>().farthest.begin() + n_);
  const Index pairs = n_ * (n_ - 1) / 2;
  Key smallest = radius;
  for (Index k = 0; k < pairs; ++k) smallest = std::min(smallest, triangle[k]);
  const int bits = std::min(16, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(pairs))));
  const int shift = std::max(0, static_cast<int>(std::bit_width(radius - smallest)) - bits);
  const auto count = static_cast<std::size_t>((radius - smallest) >> shift) + 1;

  buckets_.assign(count + 1, 0);
  for (Index k = 0; k < pairs; ++k) {
    if (triangle[k] <= radius) ++buckets_[((triangle[k] - smallest) >> shift) + 1];
  }
  std::partial_sum(buckets_.begin(), buckets_.end(), buckets_.begin());
  const std::uint32_t total = buckets_[count];
  entries.resize(total);
  const Key* key = triangle.data();
  for (Index i = 1; i < n_; ++i) {
    for (Index j = 0; j < i; ++j, ++key) {
      if (*key > radius) continue;
      Entry& entry = entries[buckets_[(*key - smallest) >> shift]++];
      const auto edge = static_cast<Edge>(i << 16 | j);
      if constexpr (std::is_same_v<Key, std::uint32_t>) {
        entry = std::uint64_t{*key} << 32 | edge;
      } else {
        entry = {*key, edge};
      }
    }
  }
  // Edges come in (row, column) order, so a bucket of equal keys is sorted already.
  for (std::size_t b = 0, begin = 0; b < count; ++b) {
    const std::size_t end = buckets_[b];
    if (end - begin > 24) {
      if (!std::is_sorted(entries.begin() + begin, entries.begin() + end)) {
        std::sort(entries.begin() + begin, entries.begin() + end);
      }
    } else {
      for (std::size_t k = begin + 1; k < end; ++k) {
        const Entry entry = entries[k];
        std::size_t at = k;
        for (; at > begin && entry < entries[at - 1]; --at) entries[at] = entries[at - 1];
        entries[at] = entry;
      }
    }
    begin = end;
  }
  edges_.resize(total);
  radius_begin_ = total;
  for (std::uint32_t k = 0; k < total; ++k) {
    if constexpr (std::is_same_v<Key, std::uint32_t>) {
      edges_[k] = static_cast<Edge>(entries[k]);
    } else {
      edges_[k] = static_cast<Edge>(entries[k].edge);
    }
  }
  const auto key_at = [&](std::uint32_t k) {
    if constexpr (std::is_same_v<Key, std::uint32_t>) {
      return static_cast<Key>(entries[k] >> 32);
    } else {
      return entries[k].key;
    }
  };
  while (radius_begin_ > 0 && key_at(radius_begin_ - 1) == radius) --radius_begin_;
}

template <class Scalar>
void EdgeOrder::assign(const MatrixView<Scalar>& attention, Symmetrize symmetrize, Metric metric) {
  n_ = attention.rows();
  metric_ = metric;
  wide_ = std::is_same_v<Scalar, double> || symmetrize == Symmetrize::mean ||
          metric == Metric::hellinger;
  remoteness_.assign(static_cast<std::size_t>(n_), 0);
  vertices_.resize(static_cast<std::size_t>(n_));
  std::iota(vertices_.begin(), vertices_.end(), std::uint16_t{0});
  edges_.clear();
  radius_begin_ = 0;
  if (n_ < 2) return;

  const auto pairs = static_cast<std::size_t>(n_ * (n_ - 1) / 2);
  if (wide_) {
    wide_keys_.triangle.resize(pairs);
    wide_keys_.farthest.assign(static_cast<std::size_t>(n_), 0);
  } else {
    narrow_keys_.triangle.resize(pairs);
    narrow_keys_.farthest.assign(static_cast<std::size_t>(n_), 0);
  }
  const auto larger = [](auto a, auto b) { return a > b ? a : b; };
  const auto smaller = [](auto a, auto b) { return a < b ? a : b; };
  if (metric == Metric::hellinger) {
    fill_hellinger(attention);
  } else if (symmetrize == Symmetrize::mean) {
    fill<std::uint64_t>(attention, [](double a, double b) { return 0.5 * (a + b); });
  } else {
    using Key = std::conditional_t<std::is_same_v<Scalar, double>, std::uint64_t, std::uint32_t>;
    if (symmetrize == Symmetrize::max) {
      fill<Key>(attention, larger);
    } else {
      fill<Key>(attention, smaller);
    }
  }
  if (wide_) {
    sort<std::uint64_t>(wide_entries_);
  } else {
    sort<std::uint32_t>(narrow_);
  }
  std::sort(vertices_.begin(), vertices_.end(), [&](std::uint16_t a, std::uint16_t b) {
    return remoteness_[a] != remoteness_[b] ? remoteness_[a] < remoteness_[b] : a < b;
  });
}

double EdgeOrder::dissimilarity(std::uint32_t index) const {
  if (!wide_) {
    return 1.0 - static_cast<double>(
                     weight_of_key(static_cast<std::uint32_t>(narrow_[index] >> 32)));
  }
  const std::uint64_t key = wide_entries_[index].key;
  return metric_ == Metric::hellinger ? std::bit_cast<double>(key) : 1.0 - weight_of_key(key);
}

#define ATTNSCOPE_INSTANTIATE(Scalar) \
  template void EdgeOrder::assign<Scalar>(const MatrixView<Scalar>&, Symmetrize, Metric);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
