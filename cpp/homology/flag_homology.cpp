// SPDX-License-Identifier: MIT
#include "homology/flag_homology.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "homology/bit_row.h"

namespace attnscope {
namespace {

using bits::Word;

constexpr std::uint32_t kLabelled = 0x80000000u;

// Whether a cell holds a label, not the neighbour from which it follows.
bool is_known(std::uint32_t entry) { return entry == 0 || (entry & kLabelled) != 0; }

// So many cells are asked for at once, because later they are looked at here and there: 1 MB.
constexpr std::size_t kAskedFor = std::size_t{1} << 18;

// Edges that see marks take the time in which this many marks are looked through.
constexpr std::size_t kMarksPerVisit = 2;

}  // namespace

void FlagHomology::reset(const std::vector<std::uint16_t>& by_connection) {
  const std::size_t n = by_connection.size();
  n_ = static_cast<Index>(n);
  words_ = (n + 63) / 64;
  if (words_ > 2) words_ = (words_ + 3) / 4 * 4;
  components_ = n_;
  old_cycles_ = 0;
  vertex_ = by_connection;
  bit_.resize(n);
  for (std::size_t k = 0; k < n; ++k) bit_[vertex_[k]] = static_cast<std::uint16_t>(k);
  rows_.assign(n * words_, 0);
  for (std::size_t k = 0; k < n; ++k) bits::insert(row(k), k);
  labelled_.assign(n * words_, 0);
  visits_ = 0;
  closed_ = 0;
  patience_ = 16;
  reached_.resize(words_);
  rest_.resize(words_);
  joined_.resize(words_);
  fresh_.resize(words_);
  cells_.resize(n * (n - 1) / 2);
  const std::size_t ahead = std::min(cells_.size(), kAskedFor);
  for (std::size_t k = 0; k < ahead; k += 16) __builtin_prefetch(cells_.data() + k, 1, 2);
  marked_.clear();
  parent_.resize(n);
  std::iota(parent_.begin(), parent_.end(), std::uint16_t{0});
  merges_.clear();
  classes_.clear();
  labels_.reset();
}

std::uint32_t FlagHomology::root(std::uint32_t vertex) {
  while (parent_[vertex] != vertex) {
    parent_[vertex] = parent_[parent_[vertex]];
    vertex = parent_[vertex];
  }
  return vertex;
}

std::uint32_t FlagHomology::entry(std::uint32_t u, std::uint32_t w) {
  return bits::contains(labelled(u), w) ? cells_[cell_of(u, w)] : 0;
}

// The label of an edge: that of a triangle's third side is the sum of the other two, and the cell
// names a triangle that the edge completed when it entered, so both other edges are older.
CycleLabels::Id FlagHomology::label(std::uint32_t u, std::uint32_t w) {
  const std::uint32_t of_edge = entry(u, w);
  if (is_known(of_edge)) return of_edge & ~kLabelled;
  pending_.assign(1, {u, w});
  CycleLabels::Id result = CycleLabels::kZero;
  while (!pending_.empty()) {
    const auto [a, b] = pending_.back();
    const std::uint32_t of_step = entry(a, b);
    if (is_known(of_step)) {
      pending_.pop_back();
      continue;
    }
    const std::uint32_t apex = of_step - 1;
    const std::uint32_t first = entry(a, apex);
    const std::uint32_t second = entry(b, apex);
    if (!is_known(first)) pending_.push_back({a, apex});
    if (!is_known(second)) pending_.push_back({b, apex});
    if (!is_known(first) || !is_known(second)) continue;
    result = labels_.sum(first & ~kLabelled, second & ~kLabelled);
    cells_[cell_of(a, b)] = result == CycleLabels::kZero ? 0 : kLabelled | result;
    pending_.pop_back();
  }
  return result;
}

void FlagHomology::mark(std::uint32_t u, std::uint32_t w, std::uint32_t entry) {
  cells_[cell_of(u, w)] = entry;
  bits::insert(labelled(u), w);
  bits::insert(labelled(w), u);
  marked_.push_back({static_cast<std::uint16_t>(u), static_cast<std::uint16_t>(w), entry});
}

void FlagHomology::drop_zero_labels() {
  visits_ = 0;
  if (labels_.closed() == closed_) return;
  closed_ = labels_.closed();
  const bool is_open = labels_.alive() != 0;
  std::size_t remaining = 0;
  for (Marked edge : marked_) {
    // A label once known stays the edge's own, and cells are far apart.
    if (is_open && !is_known(edge.entry)) edge.entry = label(edge.u, edge.w) | kLabelled;
    const bool is_zero = !is_open || labels_.is_zero(edge.entry & ~kLabelled);
    bits::erase_if(is_zero, labelled(edge.u), edge.w);
    bits::erase_if(is_zero, labelled(edge.w), edge.u);
    marked_[remaining] = edge;
    remaining += is_zero ? 0 : 1;
  }
  marked_.resize(remaining);
  patience_ = 16 + remaining / kMarksPerVisit;
}

void FlagHomology::close(std::uint32_t u, std::uint32_t w, std::uint32_t first,
                         std::uint32_t second, std::uint32_t position) {
  const bool is_zero = first == bits::kNone;
  const CycleLabels::Id a = is_zero ? CycleLabels::kZero : label(u, first);
  const CycleLabels::Id b = is_zero ? CycleLabels::kZero : label(w, first);
  const CycleLabels::Class closed = labels_.close(a, b, label(u, second), label(w, second));
  if (closed == CycleLabels::kNone) return;
  if (classes_[closed].birth < last_group_) --old_cycles_;
  classes_[closed].death = position;
}

template <int kWords>
std::uint32_t FlagHomology::next_component() {
  const std::size_t words = bits::count<kWords>(words_);
  Word* const reached = reached_.data();
  Word* const rest = rest_.data();
  Word* const joined = joined_.data();
  Word* const fresh = fresh_.data();
  for (;;) {
    const std::uint32_t start = bits::first<kWords>(rest, words);
    if (start == bits::kNone) return start;
    if (bits::meet<kWords>(row(start), reached, words)) {
      bits::move<kWords>(row(start), rest, reached, words);
      continue;
    }
    // `joined`: the component so far; `fresh`: those of it whose neighbours are not in it yet.
    bits::take<kWords>(row(start), rest, joined, words);
    std::copy(joined, joined + words, fresh);
    bits::erase(fresh, start);
    for (;;) {
      const std::uint32_t vertex = bits::first<kWords>(fresh, words);
      if (vertex == bits::kNone) return start;
      if (bits::meet<kWords>(row(vertex), reached, words)) break;
      bits::erase(fresh, vertex);
      bits::spread<kWords>(row(vertex), rest, joined, fresh, words);
    }
    bits::unite<kWords>(joined, reached, words);
  }
}

// Vertices of the lune between which no path of the lune runs see (u, w) by two triangles, whose
// sums must agree: label(u, v) + label(w, v) is the label of (u, w) for every v of the lune. Where
// a v has edges of label zero to both, all is zero, and only components without such a v say more.
template <int kWords>
void FlagHomology::add_labelled(std::uint32_t u, std::uint32_t w, std::uint32_t position) {
  const std::size_t words = bits::count<kWords>(words_);
  Word* reached = reached_.data();
  Word* rest = rest_.data();
  std::uint32_t first = bits::kNone;
  if (!bits::split_outside<kWords>(row(u), row(w), labelled(u), labelled(w), reached, rest,
                                   words)) {
    first = bits::first_in_difference<kWords>(row(u), row(w), labelled(u), labelled(w), words);
    if (first != bits::kNone) {
      const bool at_u = bits::contains(labelled(u), first);
      mark(u, w, kLabelled | label(at_u ? u : w, first));
    } else {
      first = bits::first_common<kWords>(row(u), row(w), words);
      mark(u, w, first + 1);
    }
    if (!bits::split<kWords>(row(u), row(w), row(first), reached, rest, words)) return;
  }
  for (;;) {
    const std::uint32_t vertex = next_component<kWords>();
    if (vertex == bits::kNone) return;
    close(u, w, first, vertex, position);
    if (labels_.alive() == 0) return drop_zero_labels();
  }
}

template <int kWords>
void FlagHomology::add_words(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
                             std::uint32_t last_group) {
  const std::size_t words = bits::count<kWords>(words_);
  Word* const rows = rows_.data();
  const Word* const labelled = labelled_.data();
  for (std::uint32_t e = begin; e < end; ++e) {
    if (e >= last_group && components_ == 1 && old_cycles_ == 0) return;
    const std::uint32_t u = bit_[edge_row(edges[e])];
    const std::uint32_t w = bit_[edge_column(edges[e])];
    Word* const row_u = rows + u * words;
    Word* const row_w = rows + w * words;
    if (!bits::meet<kWords>(row_u, row_w, words)) {
      const std::uint32_t a = components_ > 1 ? root(u) : 0;
      const std::uint32_t b = components_ > 1 ? root(w) : 0;
      if (a != b) {
        parent_[a] = static_cast<std::uint16_t>(b);
        --components_;
        merges_.push_back(e);
      } else {
        mark(u, w, kLabelled | labels_.open());
        classes_.push_back({e, kOpen});
        if (e < last_group) ++old_cycles_;
      }
    } else if (labels_.alive() != 0 && bits::meet_either<kWords>(row_u, row_w, labelled + u * words,
                                                                 labelled + w * words, words)) {
      add_labelled<kWords>(u, w, e);
      if (++visits_ > patience_) drop_zero_labels();
    }
    bits::insert(row_u, w);
    bits::insert(row_w, u);
  }
}

// Calls work<kWords>() for the row length at hand.
template <class Work>
auto FlagHomology::unrolled(Work work) {
  switch (words_) {
    case 1:
      return work.template operator()<1>();
    case 2:
      return work.template operator()<2>();
    case 4:
      return work.template operator()<4>();
    case 8:
      return work.template operator()<8>();
    case 16:
      return work.template operator()<16>();
    default:
      return work.template operator()<0>();
  }
}

template <int kWords>
FlagHomology::Rest FlagHomology::look_ahead_words(const EdgeOrder& order, Edge& awaited) {
  const std::size_t words = bits::count<kWords>(words_);
  Word* const beyond = rest_.data();
  Rest rest = Rest::nothing;
  Index patience = 2 * n_;
  // Badly connected vertices come first: they are the ones with something left.
  for (auto u = static_cast<std::size_t>(n_ - 1); u > 0; --u) {
    const Word* const neighbours = rows_.data() + u * words;
    // `beyond`: vertices before u that are not yet seen within two steps of it. Well connected
    // neighbours come first, so it is soon empty.
    for (std::size_t k = 0; k < words; ++k) {
      const Word before = k * 64 + 64 <= u ? ~Word{0} : k * 64 > u ? 0 : (Word{1} << (u & 63)) - 1;
      beyond[k] = before & ~neighbours[k];
    }
    bool left = true;
    for (std::size_t k = 0; k < words && left; ++k) {
      for (Word open = neighbours[k]; open != 0 && left; open &= open - 1) {
        const std::size_t via = k * 64 + std::countr_zero(open);
        left = bits::remove<kWords>(rows_.data() + via * words, beyond, words);
      }
    }
    for (std::size_t k = 0; k < words && left; ++k) {
      for (Word open = beyond[k]; open != 0; open &= open - 1) {
        const std::uint32_t a = vertex_[u];
        const std::uint32_t b = vertex_[k * 64 + std::countr_zero(open)];
        const Edge edge = make_edge(a, b);
        if (--patience == 0) return rest == Rest::opens ? rest : Rest::unknown;
        // Of the edges that will open a class the last is the one worth waiting for.
        if (rest == Rest::opens && order.precedes(edge, awaited)) continue;
        if (order.enters_with_triangle(edge)) continue;
        rest = Rest::opens;
        awaited = edge;
      }
    }
  }
  return rest;
}

FlagHomology::Rest FlagHomology::look_ahead(const EdgeOrder& order, Edge& awaited) {
  if (components_ > 1 || cycles() > 0) return Rest::unknown;
  return unrolled([&]<int kWords>() { return look_ahead_words<kWords>(order, awaited); });
}

void FlagHomology::add(const std::vector<Edge>& edges, std::uint32_t begin, std::uint32_t end,
                       std::uint32_t last_group) {
  last_group_ = last_group;
  unrolled([&]<int kWords>() { add_words<kWords>(edges, begin, end, last_group); });
}

}  // namespace attnscope
