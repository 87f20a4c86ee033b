// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cassert>

#include "simd/entry_bits.h"

// Whether the entries are 0 that no query of a causal map sees. Only kernel sources include it.
namespace attnscope {

// Bits of the hidden entries of contiguous lines of `length` >= kEntries, or'ed together: whole
// vectors, of which lanes that are seen do not count. Lines are taken four at a time, so that the
// vectors that are hidden in all of them are read without a look at where a line's part begins.
template <class Scalar, std::size_t kBytes>
class HiddenEntries {
 public:
  using Bits = EntryBits<Scalar, kBytes>;
  static constexpr Index kEntries = Bits::kEntries;

  // Lines of which line k hides the entries from begin + k·step on, step >= 0.
  void add_ends(const Scalar* line, Index stride, Index length, Index begin, Index step,
                Index lines) {
    Chains bits = bits_;
    const bool in_blocks = step == 1 && begin > 0 && (begin - 1) % kEntries == 0;
    while (kEntries <= kMostInBlock && in_blocks && lines >= kEntries &&
           begin - 1 + kEntries <= length) {
      add_block_ends(line, stride, length, begin - 1, bits);
      line += kEntries * stride;
      begin += kEntries;
      lines -= kEntries;
    }
    for (; lines >= kLines; lines -= kLines, line += kLines * stride, begin += kLines * step)
      add_some_ends<kLines>(line, stride, length, begin, step, bits);
    for (; lines > 0; --lines, line += stride, begin += step)
      add_some_ends<1>(line, stride, length, begin, step, bits);
    bits_ = bits;
  }

  // Lines of which line k hides the entries before count + k.
  void add_heads(const Scalar* line, Index stride, Index length, Index count, Index lines) {
    Chains bits = bits_;
    for (; lines >= kLines; lines -= kLines, line += kLines * stride, count += kLines)
      add_some_heads<kLines>(line, stride, length, count, bits);
    for (; lines > 0; --lines, line += stride, ++count)
      add_some_heads<1>(line, stride, length, count, bits);
    bits_ = bits;
  }

  // Whether one of them is not 0.
  bool any() const {
    Block all = bits_.of[0];
    for (Index c = 1; c < kChains; ++c) all |= bits_.of[c];
    return Bits::any_magnitude(all);
  }

 private:
  using Block = typename Bits::Block;
  static constexpr Index kLines = std::min<Index>(4, kEntries);
  static constexpr Index kChains = 4;
  static constexpr Index kMostInBlock = 8;  // blocks of more lines take no less time
  // Copied to what the loops hold in registers, since each waits for its last.
  struct Chains {
    Block of[kChains];
  };

  // Lines of which line k hides the entries after start + k: as many as a vector has entries, so
  // that the vectors in which their parts begin stand below each other, and what each of them hides
  // is known beforehand.
  [[gnu::always_inline]] static void add_block_ends(const Scalar* line, Index stride, Index length,
                                                    Index start, Chains& bits) {
#pragma GCC unroll 16
    for (Index k = 0; k + 1 < kEntries; ++k)
      bits.of[k % kChains] |= Bits::at(line + k * stride + start) & Bits::lanes_after(1, k);
    add_common<kEntries>(line, stride, start + kEntries, length, bits);
  }

  template <Index kCount>
  [[gnu::always_inline]] static void add_some_ends(const Scalar* line, Index stride, Index length,
                                                   Index begin, Index step, Chains& bits) {
    if (const Index start = std::min((begin - 1) / kEntries * kEntries, length - kEntries);
        step == 1 && begin > 0 && begin + kCount - 1 <= start + kEntries) {
      // One vector of each line holds where its part begins.
#pragma GCC unroll 4
      for (Index k = 0; k < kCount; ++k) {
        bits.of[k % kChains] |=
            Bits::at(line + k * stride + start) & Bits::lanes_after(begin - start, k);
      }
      return add_common<kCount>(line, stride, start + kEntries, length, bits);
    }
    const auto begin_of = [&](Index k) { return std::clamp<Index>(begin + k * step, 0, length); };
    const Index common = (begin_of(kCount - 1) + kEntries - 1) / kEntries * kEntries;
#pragma GCC unroll 4
    for (Index k = 0; k < kCount; ++k) {
      const Index first = begin_of(k);
      if (first == length) continue;
      const Scalar* from = line + k * stride;
      Index j = first / kEntries * kEntries;
      const Index start = std::min(j, length - kEntries);
      bits.of[k % kChains] |= Bits::at(from + start) & Bits::lanes_from(first - start);
      const Index end = std::min(common, length - kEntries + 1);
      for (j += kEntries; j < end; j += kEntries) bits.of[k % kChains] |= Bits::at(from + j);
      if (const Index last = length - kEntries; j < std::min(common, length) && start < last)
        bits.of[k % kChains] |= Bits::at(from + last) & Bits::lanes_from(j - last);
    }
    add_common<kCount>(line, stride, common, length, bits);
  }

  template <Index kCount>
  [[gnu::always_inline]] static void add_some_heads(const Scalar* line, Index stride, Index length,
                                                    Index count, Chains& bits) {
    const auto count_of = [&](Index k) { return std::clamp<Index>(count + k, 0, length); };
    const Index common = count_of(0) / kEntries * kEntries;
    for (Index j = 0; j < common; j += kEntries) {
#pragma GCC unroll 4
      for (Index k = 0; k < kCount; ++k) bits.of[k % kChains] |= Bits::at(line + k * stride + j);
    }
    if (const Index start = std::min(common, length - kEntries);
        count >= 0 && count + kCount - 1 <= start + kEntries) {
#pragma GCC unroll 4
      for (Index k = 0; k < kCount; ++k) {
        bits.of[k % kChains] |=
            Bits::at(line + k * stride + start) & ~Bits::lanes_after(count - start, k);
      }
      return;
    }
    const Index last = count_of(kCount - 1);
    for (Index j = common; j < last; j += kEntries) {
      const Index start = std::min(j, length - kEntries);
#pragma GCC unroll 4
      for (Index k = 0; k < kCount; ++k) {
        bits.of[k % kChains] |=
            Bits::at(line + k * stride + start) & ~Bits::lanes_from(count_of(k) - start);
      }
    }
  }

  // What all lines hide: the entries from `begin` on, where whole vectors begin.
  template <Index kCount>
  [[gnu::always_inline]] static void add_common(const Scalar* line, Index stride, Index begin,
                                                Index length, Chains& bits) {
    Index j = begin;
    for (; j + kEntries <= length; j += kEntries) {
#pragma GCC unroll 16
      for (Index k = 0; k < kCount; ++k) bits.of[k % kChains] |= Bits::at(line + k * stride + j);
    }
    if (j >= length) return;
    const Index start = length - kEntries;
    const Block counted = Bits::lanes_from(j - start);
#pragma GCC unroll 16
    for (Index k = 0; k < kCount; ++k)
      bits.of[k % kChains] |= Bits::at(line + k * stride + start) & counted;
  }

  Chains bits_{};
};

}  // namespace attnscope
