// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "matrix/matrix_view.h"

// The fuzzer's bytes as numbers, and what is said when a law does not hold.
namespace attnscope::fuzz {

// A law of a kernel: what the header promises of every result.
#define LAW(condition, ...)                                                        \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, "  " __VA_ARGS__);                                      \
      std::fprintf(stderr, "\n");                                                  \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

// The fuzzer's bytes one after another; behind their end a generator seeded by them, so that a few
// bytes still fill a large matrix.
class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {
    for (std::size_t k = 0; k < size; ++k) state_ = (state_ ^ data[k]) * 0x100000001b3u;
  }
  std::uint8_t byte() {
    if (left_ > 0) {
      --left_;
      return *data_++;
    }
    state_ += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::uint8_t>(z >> 29);
  }
  template <class T>
  T bits() {
    std::uint8_t raw[sizeof(T)];
    for (std::uint8_t& part : raw) part = byte();
    return std::bit_cast<T>(raw);
  }
  bool flag() { return (byte() & 1) != 0; }
  Index between(Index low, Index high) {
    return low + static_cast<Index>(bits<std::uint16_t>()) % (high - low + 1);
  }
  // In [0, 1), 16 bits.
  double unit() { return static_cast<double>(bits<std::uint16_t>()) / 65536.0; }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

// Usually small; now and then past 64, where rows of bits take a second word, and rarely up to
// `beyond`, where a kernel has another way for matrices of more than 256 rows.
inline Index read_size(Bytes& bytes, Index usual, Index largest, Index beyond = 0) {
  const std::uint8_t kind = bytes.byte();
  if (kind >= 252 && beyond > 0) return bytes.between(257, beyond);
  return kind < 232 ? bytes.between(1, usual) : bytes.between(1, largest);
}

// Numbers that break arithmetic.
inline double special_value(Bytes& bytes) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  static constexpr double kValues[] = {
      0.0,       -0.0,     1.0,
      -1.0,      0.5,      1.0 / 3,
      1e-5,      0.009,    1.01,
      2.0,       6e-8,     1e-38,
      1e-45,     5e-324,   1e-310,
      1e-160,    1e30,     1e38,
      65504,     1e154,    1.7e308,
      -1e300,    -1e-9,    -1e-45,
      kInf,      -kInf,    std::numeric_limits<double>::quiet_NaN(),
      1 - 1e-16, 1 - 6e-8, 1e-300,
      3e-39,     0.25};
  return kValues[bytes.byte() % (sizeof(kValues) / sizeof(kValues[0]))];
}

}  // namespace attnscope::fuzz
