// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

namespace attnscope {

// An unsigned number of the size of a float.
template <class Float>
using FloatKey = std::conditional_t<std::is_same_v<Float, double>, std::uint64_t, std::uint32_t>;
template <class Float>
inline constexpr FloatKey<Float> kSignBit = FloatKey<Float>{1} << (8 * sizeof(Float) - 1);

// Keys in the order of the floats, −0 before 0, and the float of a key.
template <class Float>
FloatKey<Float> ordered_key(Float x) {
  const auto bits = std::bit_cast<FloatKey<Float>>(x);
  return (bits & kSignBit<Float>) != 0 ? ~bits : bits | kSignBit<Float>;
}
template <class Float>
Float float_of_key(FloatKey<Float> key) {
  return std::bit_cast<Float>((key & kSignBit<Float>) != 0 ? key & ~kSignBit<Float> : ~key);
}

// Sorts `count` entries by key_of(entry), stably. `lowest` is the smallest key and `union_of_keys`
// the bitwise or of all keys; `scratch` holds as many entries, `counts` is scratch too.
//
// Two counting passes over the leading digits leave nearly distinct keys nearly sorted, which an
// insertion pass finishes; where it meets too much disorder (most keys equal in their leading
// digits) all digits are sorted instead. Cost O(count), at worst O(count · bits/11).
template <class Entry, class KeyOf, class Key>
void radix_sort(Entry* entries, Entry* scratch, std::size_t count, Key lowest, Key union_of_keys,
                KeyOf key_of, std::vector<std::uint32_t>& counts) {
  if (count < 2 || union_of_keys == lowest) return;
  // Trailing zeros that all keys share, as those of half types, need no sorting.
  const int low = std::countr_zero(union_of_keys);
  const int bits = static_cast<int>(std::bit_width(static_cast<Key>(union_of_keys - lowest))) - low;
  // Digits as wide as the counts can be cleared and summed for less than the entries cost.
  const int digit = std::clamp(static_cast<int>(std::bit_width(count)) - 1, 4, 11);
  const std::size_t values = std::size_t{1} << digit;

  const auto digits_of = [&](const Entry& entry) {
    return static_cast<Key>(key_of(entry) - lowest);
  };
  const auto scatter = [&](const Entry* from, Entry* to, int shift, std::uint32_t* places) {
    const Key mask = static_cast<Key>(values - 1);
    std::uint32_t sum = 0;
    for (std::size_t v = 0; v < values; ++v) sum += std::exchange(places[v], sum);
    for (std::size_t k = 0; k < count; ++k) {
      to[places[(digits_of(from[k]) >> shift) & mask]++] = from[k];
    }
  };
  const auto pass = [&](const Entry* from, Entry* to, int shift) {
    counts.assign(values, 0);
    const Key mask = static_cast<Key>(values - 1);
    for (std::size_t k = 0; k < count; ++k) ++counts[(digits_of(from[k]) >> shift) & mask];
    scatter(from, to, shift, counts.data());
  };
  // Both digits are counted in one read.
  const auto two_passes = [&](int shift) {
    counts.assign(2 * values, 0);
    const Key mask = static_cast<Key>(values - 1);
    std::uint32_t* const high = counts.data() + values;
    for (std::size_t k = 0; k < count; ++k) {
      const Key digits = digits_of(entries[k]) >> shift;
      ++counts[digits & mask];
      ++high[(digits >> digit) & mask];
    }
    scatter(entries, scratch, shift, counts.data());
    scatter(scratch, entries, shift + digit, high);
  };
  const auto all_digits = [&] {
    Entry* from = entries;
    Entry* to = scratch;
    for (int shift = low; shift < low + bits; shift += digit) {
      pass(from, to, shift);
      std::swap(from, to);
    }
    if (from != entries) std::copy(from, from + count, entries);
  };

  if (bits <= digit) return all_digits();
  const int shift = std::max(low, low + bits - 2 * digit);
  two_passes(shift);
  if (shift == low) return;
  std::size_t budget = 4 * count;
  for (std::size_t k = 1; k < count; ++k) {
    if (!(key_of(entries[k]) < key_of(entries[k - 1]))) continue;
    const Entry entry = entries[k];
    const Key key = key_of(entry);
    std::size_t at = k;
    for (; at > 0 && key < key_of(entries[at - 1]); --at) entries[at] = entries[at - 1];
    entries[at] = entry;
    const std::size_t moved = k - at;
    if (moved > budget) return all_digits();
    budget -= moved;
  }
}

}  // namespace attnscope
