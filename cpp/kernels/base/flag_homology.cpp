// SPDX-License-Identifier: MIT
#include "kernels/base/flag_homology.h"

#include <bit>
#include <numeric>

namespace attnscope {
namespace {

constexpr std::uint32_t kLabelled = 0x80000000u;

}  // namespace

void FlagHomology::reset(const std::vector<std::uint16_t>& by_connection) {
  n_ = static_cast<Index>(by_connection.size());
  words_ = std::bit_ceil(static_cast<std::size_t>((n_ + 63) / 64));
  components_ = n_;
  old_cycles_ = 0;
  position_.resize(by_connection.size());
  for (std::size_t k = 0; k < by_connection.size(); ++k) {
    position_[by_connection[k]] = static_cast<std::uint16_t>(k);
  }
  rows_.assign(by_connection.size() * words_, 0);
  cells_.resize(by_connection.size() * (by_connection.size() - 1) / 2);
  parent_.resize(by_connection.size());
  std::iota(parent_.begin(), parent_.end(), std::uint16_t{0});
  merges_.clear();
  closed_.clear();
  births_.clear();
  labels_.reset();
  lune_.resize(words_);
  rest_.resize(words_);
}

std::uint32_t FlagHomology::root(std::uint32_t vertex) {
  while (parent_[vertex] != vertex) {
    parent_[vertex] = parent_[parent_[vertex]];
    vertex = parent_[vertex];
  }
  return vertex;
}

// The label of an edge: that of a triangle's third side is the sum of the other two, and the cell names a
// triangle that the edge completed when it entered, so both other edges are older.
CycleLabels::Id FlagHomology::label(std::uint32_t u, std::uint32_t w) {
  const std::size_t wanted = cell(u, w);
  if (cells_[wanted] & kLabelled) return cells_[wanted] & ~kLabelled;
  pending_.assign(1, {u, w});
  while (!pending_.empty()) {
    const auto [a, b] = pending_.back();
    const std::size_t at = cell(a, b);
    const std::uint32_t apex = cells_[at];
    if (apex & kLabelled) {
      pending_.pop_back();
      continue;
    }
    const std::uint32_t first = cells_[cell(a, apex)];
    const std::uint32_t second = cells_[cell(b, apex)];
    if (!(first & kLabelled)) pending_.push_back({a, apex});
    if (!(second & kLabelled)) pending_.push_back({b, apex});
    if ((first & second & kLabelled) == 0) continue;
    cells_[at] = kLabelled | labels_.sum(first & ~kLabelled, second & ~kLabelled);
    pending_.pop_back();
  }
  return cells_[wanted] & ~kLabelled;
}

template <int kWords>
void FlagHomology::close(std::uint32_t u, std::uint32_t w, std::uint32_t apex,
                         std::uint32_t position, const std::uint64_t* lune, std::uint64_t* rest) {
  const std::size_t words = kWords > 0 ? static_cast<std::size_t>(kWords) : words_;
  const std::uint64_t* rows = rows_.data();
  // `rest` holds the vertices of the lune that are not known to be joined to the components found so
  // far. Absorbing a reached vertex takes all its neighbours out of `rest`.
  for (;;) {
    bool grew = true;
    bool left = true;
    while (grew && left) {
      grew = false;
      left = false;
      for (std::size_t k = 0; k < words; ++k) {
        for (std::uint64_t bits = rest[k]; bits != 0; bits &= rest[k]) {
          const auto vertex = k * 64 + static_cast<std::size_t>(std::countr_zero(bits));
          bits &= bits - 1;
          const std::uint64_t* row = rows + vertex * words;
          std::uint64_t touches = 0;
          for (std::size_t q = 0; q < words; ++q) touches |= row[q] & lune[q] & ~rest[q];
          if (touches == 0) {
            left = true;
            continue;
          }
          rest[k] &= ~(std::uint64_t{1} << (vertex & 63));
          for (std::size_t q = 0; q < words; ++q) rest[q] &= ~row[q];
          grew = true;
        }
      }
    }
    if (!left) return;
    std::size_t k = 0;
    while (rest[k] == 0) ++k;
    const auto vertex =
        static_cast<std::uint32_t>(k * 64 + static_cast<std::size_t>(std::countr_zero(rest[k])));
    const CycleLabels::Class gone =
        labels_.close(label(u, apex), label(w, apex), label(u, vertex), label(w, vertex));
    if (gone != CycleLabels::kNone) {
      if (births_[gone] < last_group_) --old_cycles_;
      closed_.push_back({births_[gone], position});
      if (labels_.alive() == 0) return;
    }
    const std::uint64_t* row = rows + vertex * words;
    rest[k] &= rest[k] - 1;
    for (std::size_t q = 0; q < words; ++q) rest[q] &= ~row[q];
  }
}

template <int kWords>
void FlagHomology::add_words(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
                             std::uint32_t last_group) {
  const std::size_t words = kWords > 0 ? static_cast<std::size_t>(kWords) : words_;
  std::uint64_t local_lune[kWords > 0 ? kWords : 1];
  std::uint64_t local_rest[kWords > 0 ? kWords : 1];
  std::uint64_t* lune = kWords > 0 ? local_lune : lune_.data();
  std::uint64_t* rest = kWords > 0 ? local_rest : rest_.data();
  for (std::uint32_t e = begin; e < end; ++e) {
    if (e >= last_group && components_ == 1 && old_cycles_ == 0) return;
    const std::uint32_t u = position_[edge_row(edges[e])];
    const std::uint32_t w = position_[edge_column(edges[e])];
    std::uint64_t* row_u = rows_.data() + u * words;
    std::uint64_t* row_w = rows_.data() + w * words;
    std::uint64_t any = 0;
    for (std::size_t k = 0; k < words; ++k) {
      lune[k] = row_u[k] & row_w[k];
      any |= lune[k];
    }
    std::uint32_t& entry = cells_[cell(u, w)];
    if (any == 0) {
      const std::uint32_t a = components_ > 1 ? root(u) : 0;
      const std::uint32_t b = components_ > 1 ? root(w) : 0;
      if (a != b) {
        parent_[a] = static_cast<std::uint16_t>(b);
        --components_;
        merges_.push_back(e);
        entry = kLabelled | CycleLabels::kZero;
      } else {
        entry = kLabelled | labels_.open();
        births_.push_back(e);
        if (e < last_group) ++old_cycles_;
      }
    } else if (labels_.alive() == 0) {
      entry = kLabelled | CycleLabels::kZero;
    } else {
      std::size_t k = 0;
      while (lune[k] == 0) ++k;
      const auto apex =
          static_cast<std::uint32_t>(k * 64 + static_cast<std::size_t>(std::countr_zero(lune[k])));
      entry = apex;
      const std::uint64_t* row = rows_.data() + apex * words;
      std::uint64_t left = 0;
      for (std::size_t q = 0; q < words; ++q) rest[q] = lune[q] & ~row[q];
      rest[k] &= ~(std::uint64_t{1} << (apex & 63));
      for (std::size_t q = 0; q < words; ++q) left |= rest[q];
      if (left != 0) close<kWords>(u, w, apex, e, lune, rest);
    }
    row_u[w >> 6] |= std::uint64_t{1} << (w & 63);
    row_w[u >> 6] |= std::uint64_t{1} << (u & 63);
  }
}

void FlagHomology::add(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
                       std::uint32_t last_group) {
  last_group_ = last_group;
  switch (words_) {
    case 1:
      return add_words<1>(edges, begin, end, last_group);
    case 2:
      return add_words<2>(edges, begin, end, last_group);
    case 4:
      return add_words<4>(edges, begin, end, last_group);
    case 8:
      return add_words<8>(edges, begin, end, last_group);
    case 16:
      return add_words<16>(edges, begin, end, last_group);
    default:
      return add_words<0>(edges, begin, end, last_group);
  }
}

}  // namespace attnscope
