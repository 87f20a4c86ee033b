// SPDX-License-Identifier: MIT
#include "graphs/strong_components.h"

#include <algorithm>
#include <bit>

namespace attnscope {
namespace {

constexpr Index kWord = 64;
static_assert(kLevelBlock == kWord);

// Whether an edge of the lowest graph leads to a later vertex.
bool leads_forward(const LevelTable& directed) {
  for (Index i = 0; i < directed.n; ++i) {
    Level levels = 0;
    const Level* row = directed.row(i);
    for (Index j = i + 1; j < directed.n; ++j) levels |= row[j];
    if (levels != 0) return true;
  }
  return false;
}

void pack_edges(const LevelTable& table, Level above, std::vector<std::uint64_t>& bits) {
  const Index words = table.stride / kWord;
  bits.resize(static_cast<std::size_t>(table.n * words));
  for (Index i = 0; i < table.n; ++i) {
    for (Index w = 0; w < words; ++w) {
      bits[static_cast<std::size_t>(i * words + w)] = bits_above(table.row(i) + w * kWord, above);
    }
  }
}

void wait_for_all(Index n, Index words, std::vector<std::uint64_t>& waiting) {
  waiting.assign(static_cast<std::size_t>(words), 0);
  for (Index i = 0; i < n; ++i) {
    waiting[static_cast<std::size_t>(i / kWord)] |= std::uint64_t{1} << (i % kWord);
  }
}

bool take(std::vector<std::uint64_t>& waiting, Index vertex) {
  std::uint64_t& word = waiting[static_cast<std::size_t>(vertex / kWord)];
  const std::uint64_t bit = std::uint64_t{1} << (vertex % kWord);
  const bool waits = (word & bit) != 0;
  word &= ~bit;
  return waits;
}

// Vertices in the order in which a search in depth along the edges leaves them.
void order_by_finish(Index n, Index words, StrongSearch& search) {
  wait_for_all(n, words, search.waiting);
  search.finished.clear();
  search.path.clear();
  search.cursor.assign(static_cast<std::size_t>(n), 0);
  for (Index root = 0; root < n; ++root) {
    if (!take(search.waiting, root)) continue;
    search.path.push_back(root);
    while (!search.path.empty()) {
      const Index vertex = search.path.back();
      const std::uint64_t* row = search.from.data() + vertex * words;
      Index& word = search.cursor[static_cast<std::size_t>(vertex)];
      std::uint64_t ahead = 0;
      while (word < words &&
             (ahead = row[word] & search.waiting[static_cast<std::size_t>(word)]) == 0) {
        ++word;
      }
      if (word == words) {
        search.finished.push_back(vertex);
        search.path.pop_back();
        continue;
      }
      const Index next = word * kWord + std::countr_zero(ahead);
      take(search.waiting, next);
      search.path.push_back(next);
    }
  }
}

// Against the edges, from the vertex that was left last, a search reaches one component at a time.
std::int64_t count_against_edges(Index n, Index words, StrongSearch& search) {
  wait_for_all(n, words, search.waiting);
  std::int64_t components = 0;
  for (auto root = search.finished.rbegin(); root != search.finished.rend(); ++root) {
    if (!take(search.waiting, *root)) continue;
    ++components;
    search.path.push_back(*root);
    while (!search.path.empty()) {
      const std::uint64_t* column = search.into.data() + search.path.back() * words;
      search.path.pop_back();
      for (Index word = 0; word < words; ++word) {
        std::uint64_t& waiting = search.waiting[static_cast<std::size_t>(word)];
        std::uint64_t reached = column[word] & waiting;
        waiting &= ~reached;
        for (; reached != 0; reached &= reached - 1) {
          search.path.push_back(word * kWord + std::countr_zero(reached));
        }
      }
    }
  }
  return components;
}

}  // namespace

void count_strong_components(const LevelTable& directed, Index count, StrongSearch& search,
                             std::vector<std::int64_t>& components) {
  const Index n = directed.n;
  components.assign(static_cast<std::size_t>(count), n);
  if (!leads_forward(directed)) return;
  const Index words = directed.stride / kWord;
  transpose_levels(directed, search.turned);
  for (Index t = 0; t < count; ++t) {
    pack_edges(directed, static_cast<Level>(t), search.from);
    pack_edges(search.turned, static_cast<Level>(t), search.into);
    order_by_finish(n, words, search);
    components[static_cast<std::size_t>(t)] = count_against_edges(n, words, search);
    // A graph of a higher threshold has no edges that this one lacks.
    if (components[static_cast<std::size_t>(t)] == n) return;
  }
}

}  // namespace attnscope
