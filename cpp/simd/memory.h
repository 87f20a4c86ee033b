// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cassert>
#include <cstdint>

// How entries of memory are counted, scratch, and memory that is asked for before it is needed.
namespace attnscope {

using Index = std::int64_t;

// What the program does with large scratch before its first use, such as asking the system for
// large pages: the kernels know no system.
inline void (*prepare_large_scratch)(void* memory, Index bytes) = nullptr;
inline constexpr Index kLargeScratch = Index{1} << 22;  // bytes

// Scratch of float64 numbers on a cache line's boundary, which grows and is reused over a batch.
// What `resize` returns is not initialised and does not keep what was there.
class AlignedBuffer {
 public:
  double* resize(Index size) {
    assert(size >= 0);
    if (size > numbers_.size()) {
      numbers_ = Eigen::VectorXd(size);
      constexpr Index kNumber = sizeof(double);
      if (prepare_large_scratch != nullptr && size * kNumber >= kLargeScratch)
        prepare_large_scratch(numbers_.data(), size * kNumber);
    }
    return numbers_.data();
  }
  const double* data() const { return numbers_.data(); }

 private:
  Eigen::VectorXd numbers_;
};
static_assert(EIGEN_MAX_ALIGN_BYTES == 64);

// Memory that a later call reads or writes, asked for in portions while this one computes, which
// takes about as long. Portions follow each other, because a processor goes on by itself where they
// do, and come into its second cache, the first one being this call's.
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
