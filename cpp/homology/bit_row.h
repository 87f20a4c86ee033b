// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef __AVX__
#include <immintrin.h>
#endif

// Sets of vertices as rows of 64-bit words: 1 or 2 words, or a multiple of 4, on 32-byte
// boundaries. kWords is the number of words where the compiler is to unroll, 0 where `words` tells
// it at run time.
namespace attnscope::bits {

using Word = std::uint64_t;
typedef Word Block __attribute__((vector_size(32)));

inline bool any(Block block) {
#ifdef __AVX__
  return _mm256_testz_si256(reinterpret_cast<__m256i>(block), reinterpret_cast<__m256i>(block)) ==
         0;
#else
  return (block[0] | block[1] | block[2] | block[3]) != 0;
#endif
}

inline void insert(Word* row, std::size_t bit) { row[bit >> 6] |= Word{1} << (bit & 63); }

inline bool contains(const Word* row, std::size_t bit) {
  return (row[bit >> 6] >> (bit & 63) & 1) != 0;
}
inline void erase(Word* row, std::size_t bit) { row[bit >> 6] &= ~(Word{1} << (bit & 63)); }

template <int kWords>
std::size_t count(std::size_t words) {
  return kWords > 0 ? static_cast<std::size_t>(kWords) : words;
}

// Whether any word of f(i-th words) is non-zero; f takes and returns a Word or a Block.
template <int kWords, class F>
bool any_of(std::size_t words, F f) {
  if constexpr (kWords == 1) {
    return f(std::size_t{0}, Word{}) != 0;
  } else if constexpr (kWords == 2) {
    return (f(std::size_t{0}, Word{}) | f(std::size_t{1}, Word{})) != 0;
  } else {
    Block seen{};
    for (std::size_t k = 0; k < count<kWords>(words); k += 4) seen |= f(k, Block{});
    return any(seen);
  }
}

// The k-th words of a row, as many as T holds.
template <class T>
T at(const Word* row, std::size_t k, T words) {
  std::memcpy(&words, __builtin_assume_aligned(row + k, sizeof(T)), sizeof(T));
  return words;
}
template <class T>
void put(Word* row, std::size_t k, T words) {
  std::memcpy(__builtin_assume_aligned(row + k, sizeof(T)), &words, sizeof(T));
}

inline constexpr std::uint32_t kNone = 0xffffffffu;

// The smallest element of a ∩ b, kNone where there is none.
template <int kWords>
std::uint32_t first_common(const Word* a, const Word* b, std::size_t words) {
  if constexpr (kWords == 2) {
    const Word low = a[0] & b[0];
    const Word high = a[1] & b[1];
    if ((low | high) == 0) return kNone;
    const int offset = low != 0 ? 0 : 64;
    return static_cast<std::uint32_t>(offset + std::countr_zero(low != 0 ? low : high));
  } else {
    for (std::size_t k = 0; k < count<kWords>(words); ++k) {
      const Word both = a[k] & b[k];
      if (both != 0)
        return static_cast<std::uint32_t>(k * 64) +
               static_cast<std::uint32_t>(std::countr_zero(both));
    }
    return kNone;
  }
}

// The smallest element of a ∩ b that is in one of c and d alone, kNone where there is none.
template <int kWords>
std::uint32_t first_in_difference(const Word* a, const Word* b, const Word* c, const Word* d,
                                  std::size_t words) {
  for (std::size_t k = 0; k < count<kWords>(words); ++k) {
    const Word in_difference = a[k] & b[k] & (c[k] ^ d[k]);
    if (in_difference != 0)
      return static_cast<std::uint32_t>(k * 64 + std::countr_zero(in_difference));
  }
  return kNone;
}

// a ∩ b ≠ ∅.
template <int kWords>
bool meet(const Word* a, const Word* b, std::size_t words) {
  return any_of<kWords>(words,
                        [=](std::size_t k, auto kind) { return at(a, k, kind) & at(b, k, kind); });
}

// a ∩ b ∩ (c ∪ d) ≠ ∅.
template <int kWords>
bool meet_either(const Word* a, const Word* b, const Word* c, const Word* d, std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    return at(a, k, kind) & at(b, k, kind) & (at(c, k, kind) | at(d, k, kind));
  });
}

// in := (a ∩ b) ∩ c and out := (a ∩ b) \ c; whether anything is in `out`.
template <int kWords>
bool split(const Word* a, const Word* b, const Word* c, Word* in, Word* out, std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    const auto both = at(a, k, kind) & at(b, k, kind);
    const auto near = at(c, k, kind);
    put(in, k, both & near);
    put(out, k, both & ~near);
    return both & ~near;
  });
}

// in := (a ∩ b) \ (c ∪ d) and out := (a ∩ b) ∩ (c ∪ d); whether anything is in `in`.
template <int kWords>
bool split_outside(const Word* a, const Word* b, const Word* c, const Word* d, Word* in, Word* out,
                   std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    const auto both = at(a, k, kind) & at(b, k, kind);
    const auto either = at(c, k, kind) | at(d, k, kind);
    put(in, k, both & ~either);
    put(out, k, both & either);
    return both & ~either;
  });
}

// from := from \ row; whether anything is left.
template <int kWords>
bool remove(const Word* row, Word* from, std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    const auto kept = at(from, k, kind) & ~at(row, k, kind);
    put(from, k, kept);
    return kept;
  });
}

// Moves from ∩ row into `to`; whether anything is left in `from`.
template <int kWords>
bool move(const Word* row, Word* from, Word* to, std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    const auto source = at(from, k, kind);
    const auto near = at(row, k, kind);
    put(to, k, at(to, k, kind) | (source & near));
    put(from, k, source & ~near);
    return source & ~near;
  });
}

}  // namespace attnscope::bits
