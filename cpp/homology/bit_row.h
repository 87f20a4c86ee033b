// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX__
#include <immintrin.h>
#endif

// Sets of vertices as rows of 64-bit words: 1 or 2 words, or a multiple of 4, on 32-byte
// boundaries, or 64-byte boundaries where 8 divides it. kWords is the number of words where the
// compiler is to unroll, 0 where `words` tells it at run time.
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

#ifdef __AVX512F__
// Eight words at once where rows have them.
typedef Word WideBlock __attribute__((vector_size(64)));
inline bool any(WideBlock block) {
  const auto words = reinterpret_cast<__m512i>(block);
  return _mm512_test_epi64_mask(words, words) != 0;
}
template <int kWords>
using BlockOf = std::conditional_t<kWords % 8 == 0 && kWords != 0, WideBlock, Block>;
#else
template <int kWords>
using BlockOf = Block;
#endif

inline void insert(Word* row, std::size_t bit) { row[bit >> 6] |= Word{1} << (bit & 63); }

inline bool contains(const Word* row, std::size_t bit) {
  return (row[bit >> 6] >> (bit & 63) & 1) != 0;
}
inline void erase(Word* row, std::size_t bit) { row[bit >> 6] &= ~(Word{1} << (bit & 63)); }
// The same without a branch, for what cannot be foreseen.
inline void erase_if(bool erased, Word* row, std::size_t bit) {
  row[bit >> 6] &= ~(static_cast<Word>(erased) << (bit & 63));
}

template <int kWords>
std::size_t count(std::size_t words) {
  return kWords > 0 ? static_cast<std::size_t>(kWords) : words;
}

// Whether any word of f(i-th words) is non-zero; f takes and returns words of one
// type.
template <int kWords, class F>
bool any_of(std::size_t words, F f) {
  if constexpr (kWords == 1) {
    return f(std::size_t{0}, Word{}) != 0;
  } else if constexpr (kWords == 2) {
    return (f(std::size_t{0}, Word{}) | f(std::size_t{1}, Word{})) != 0;
  } else {
    using Words = BlockOf<kWords>;
    Words all_words{};
    for (std::size_t k = 0; k < count<kWords>(words); k += sizeof(Words) / sizeof(Word))
      all_words |= f(k, Words{});
    return any(all_words);
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

// The smallest element of the row whose k-th words are f(k, kind), kNone where there is none.
template <int kWords, class F>
std::uint32_t first_of(std::size_t words, F f) {
#ifdef __AVX512F__
  if constexpr (kWords == 8) {
    const auto all = reinterpret_cast<__m512i>(f(std::size_t{0}, WideBlock{}));
    const __mmask8 nonzero = _mm512_test_epi64_mask(all, all);
    if (nonzero == 0) return kNone;
    const auto word = static_cast<Word>(
        _mm_cvtsi128_si64(_mm512_castsi512_si128(_mm512_maskz_compress_epi64(nonzero, all))));
    return static_cast<std::uint32_t>(std::countr_zero(static_cast<unsigned>(nonzero)) * 64 +
                                      std::countr_zero(word));
  }
#endif
  if constexpr (kWords == 2) {
    const Word low = f(std::size_t{0}, Word{});
    const Word high = f(std::size_t{1}, Word{});
    if ((low | high) == 0) return kNone;
    return static_cast<std::uint32_t>((low != 0 ? 0 : 64) +
                                      std::countr_zero(low != 0 ? low : high));
  }
  for (std::size_t k = 0; k < count<kWords>(words); ++k) {
    const Word word = f(k, Word{});
    if (word != 0) return static_cast<std::uint32_t>(k * 64 + std::countr_zero(word));
  }
  return kNone;
}

// The smallest element of a row, of a ∩ b, and of a ∩ b in one of c and d alone; kNone where there
// is none.
template <int kWords>
std::uint32_t first(const Word* row, std::size_t words) {
  return first_of<kWords>(words, [=](std::size_t k, auto kind) { return at(row, k, kind); });
}
template <int kWords>
std::uint32_t first_common(const Word* a, const Word* b, std::size_t words) {
  return first_of<kWords>(
      words, [=](std::size_t k, auto kind) { return at(a, k, kind) & at(b, k, kind); });
}
template <int kWords>
std::uint32_t first_in_difference(const Word* a, const Word* b, const Word* c, const Word* d,
                                  std::size_t words) {
  return first_of<kWords>(words, [=](std::size_t k, auto kind) {
    return at(a, k, kind) & at(b, k, kind) & (at(c, k, kind) ^ at(d, k, kind));
  });
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
    const auto common = at(a, k, kind) & at(b, k, kind);
    const auto near = at(c, k, kind);
    put(in, k, common & near);
    put(out, k, common & ~near);
    return common & ~near;
  });
}

// in := (a ∩ b) \ (c ∪ d) and out := (a ∩ b) ∩ (c ∪ d); whether anything is in `in`.
template <int kWords>
bool split_outside(const Word* a, const Word* b, const Word* c, const Word* d, Word* in, Word* out,
                   std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    const auto common = at(a, k, kind) & at(b, k, kind);
    const auto either = at(c, k, kind) | at(d, k, kind);
    put(in, k, common & ~either);
    put(out, k, common & either);
    return common & ~either;
  });
}

// from := from \ row; whether anything is left.
template <int kWords>
bool remove(const Word* row, Word* from, std::size_t words) {
  return any_of<kWords>(words, [=](std::size_t k, auto kind) {
    const auto rest = at(from, k, kind) & ~at(row, k, kind);
    put(from, k, rest);
    return rest;
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

// Calls f(k, kind) for the words of a row, as any_of.
template <int kWords, class F>
void for_each(std::size_t words, F f) {
  any_of<kWords>(words, [&](std::size_t k, auto kind) {
    f(k, kind);
    return kind;
  });
}

// in := from ∩ row, which leaves `from`.
template <int kWords>
void take(const Word* row, Word* from, Word* in, std::size_t words) {
  for_each<kWords>(words, [=](std::size_t k, auto kind) {
    const auto source = at(from, k, kind);
    const auto near = at(row, k, kind);
    put(in, k, source & near);
    put(from, k, source & ~near);
  });
}

// Moves from ∩ row into `a` and `b`.
template <int kWords>
void spread(const Word* row, Word* from, Word* a, Word* b, std::size_t words) {
  for_each<kWords>(words, [=](std::size_t k, auto kind) {
    const auto source = at(from, k, kind);
    const auto near = at(row, k, kind);
    put(a, k, at(a, k, kind) | (source & near));
    put(b, k, at(b, k, kind) | (source & near));
    put(from, k, source & ~near);
  });
}

// to := to ∪ row.
template <int kWords>
void unite(const Word* row, Word* to, std::size_t words) {
  for_each<kWords>(
      words, [=](std::size_t k, auto kind) { put(to, k, at(to, k, kind) | at(row, k, kind)); });
}

}  // namespace attnscope::bits
