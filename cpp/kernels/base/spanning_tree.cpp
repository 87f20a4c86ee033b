// SPDX-License-Identifier: MIT
#include "kernels/base/spanning_tree.h"

#include <algorithm>

namespace attnscope {
namespace {

constexpr std::size_t kTile = 16;

}  // namespace

template <class Key>
void SpanningTree<Key>::mirror(const std::vector<Key>& triangle) {
  square_.resize(n_ * stride_);
  for (std::size_t first = 0; first < n_; first += kTile) {
    const std::size_t last = std::min(first + kTile, n_);
    for (std::size_t i = first; i < last; ++i) {
      const Key* row = triangle.data() + i * (i - (i > 0 ? 1 : 0)) / 2;
      std::copy(row, row + i, square_.data() + i * stride_);
      square_[i * stride_ + i] = ~Key{0};
    }
    // The tile's transpose goes out in rows that lie together.
    for (std::size_t j = 0; j < last; ++j) {
      Key* out = square_.data() + j * stride_;
      for (std::size_t i = std::max(first, j + 1); i < last; ++i) out[i] = square_[i * stride_ + j];
    }
  }
}

template <class Key>
bool SpanningTree<Key>::assign(const std::vector<Key>& triangle, Index count) {
  constexpr Key kAll = ~Key{0};
  const auto n = static_cast<std::size_t>(count);
  n_ = n;
  stride_ = (n_ + 15) / 16 * 16;
  mirror(triangle);
  best_.assign(n, kAll);
  inside_.assign(n, 0);
  from_.assign(n, 0);
  edges_.clear();
  Key* __restrict__ best = best_.data();
  Key* __restrict__ inside = inside_.data();
  Key* __restrict__ from = from_.data();
  Key tied = kAll;  // the smallest key that two candidates of one vertex shared
  Key largest = 0;  // of the tree
  std::size_t vertex = 0;
  for (std::size_t step = 1; step < n; ++step) {
    inside[vertex] = kAll;
    best[vertex] = kAll;
    const Key* __restrict__ row = square_.data() + vertex * stride_;
    const Key self = static_cast<Key>(vertex);
    Key smallest = kAll;
    for (std::size_t j = 0; j < n; ++j) {
      const Key key = row[j] | inside[j];
      const Key old = best[j];
      const Key lower = std::min(key, old);
      // Masks instead of conditions: the compiler makes branches of those and gives up.
      const Key takes = Key{0} - static_cast<Key>(lower != old);
      const Key ties = Key{0} - static_cast<Key>(key == old);
      tied = std::min(tied, key | ~ties | inside[j]);
      from[j] = (self & takes) | (from[j] & ~takes);
      best[j] = lower;
      smallest = std::min(smallest, lower);
    }
    Key places = 0;
    Key last = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const Key here = best[j] == smallest ? kAll : Key{0};
      places -= here;
      last |= here & static_cast<Key>(j);
    }
    largest = std::max(largest, smallest);
    if (places != 1 || tied <= largest) return false;
    vertex = static_cast<std::size_t>(last);
    const auto other = static_cast<std::uint32_t>(from[vertex]);
    const auto own = static_cast<std::uint32_t>(vertex);
    edges_.push_back(make_edge(own, other));
  }
  return true;
}

template class SpanningTree<std::uint32_t>;
template class SpanningTree<std::uint64_t>;

}  // namespace attnscope
