// SPDX-License-Identifier: MIT
#pragma once

#include <Eigen/Core>
#include <cassert>
#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// How entries of memory are counted, scratch, and memory that is asked for before it is needed.
namespace attnscope {

using Index = std::int64_t;

// Asks the system for pages of 2 MiB in fresh memory that holds some of them: it hands out a page
// at its first use, and the usual ones of 4096 bytes take a twentieth of the time of a product of
// matrices of 2,048 columns. A system that has none leaves the memory as it is.
inline void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] Index bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (begin + static_cast<std::uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

// Scratch of float64 numbers on a cache line's boundary, which grows and is reused over a batch.
// What `resize` returns is not initialised and does not keep what was there.
class AlignedBuffer {
 public:
  double* resize(Index size) {
    assert(size >= 0);
    if (size > numbers_.size()) {
      numbers_ = Eigen::VectorXd(size);
      constexpr Index kNumber = sizeof(double);
      prefer_huge_pages(numbers_.data(), size * kNumber);
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
