// SPDX-License-Identifier: MIT
#pragma once

#include "simd/aligned_buffer.h"

namespace attnscope {

// Memory that a later call reads or writes, asked for in portions while this one computes, which takes about as long.
// Portions follow each other, because a processor goes on by itself where they do, and come into its second cache,
// the first one being this call's.
class Ahead {
 public:
  static constexpr Index kLine = 64;  // bytes

  Ahead() = default;
  Ahead(const void* from, Index bytes) : at_(static_cast<const char*>(from)), end_(at_ + bytes) {}

  void ask(Index lines) {
    if (end_ - at_ < lines * kLine) return;
    for (Index line = 0; line < lines; ++line) __builtin_prefetch(at_ + line * kLine, 0, 2);
    at_ += lines * kLine;
  }

 private:
  const char* at_ = nullptr;
  const char* end_ = nullptr;
};

}  // namespace attnscope
