// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstdint>

#include "simd/memory.h"

namespace attnscope {
namespace {

TEST(AlignedBufferTest, GrowsAndKeepsItsMemoryOtherwise) {
  AlignedBuffer buffer;
  double* const first = buffer.resize(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 64, 0u);
  EXPECT_EQ(buffer.resize(7), first);
  double* const large = buffer.resize(Index{1} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(large) % 64, 0u);
  large[0] = 1.0;
  large[(Index{1} << 20) - 1] = 2.0;
  EXPECT_EQ(buffer.data()[0] + buffer.data()[(Index{1} << 20) - 1], 3.0);
}

// What prepare_large_scratch was called with last.
void* prepared = nullptr;
Index prepared_bytes = 0;

TEST(AlignedBufferTest, LargeScratchIsPreparedOnceWhereItIsNew) {
  const auto before = prepare_large_scratch;
  prepare_large_scratch = [](void* memory, Index bytes) {
    prepared = memory;
    prepared_bytes = bytes;
  };
  AlignedBuffer buffer;
  constexpr Index kNumbers = kLargeScratch / static_cast<Index>(sizeof(double));
  buffer.resize(kNumbers - 1);
  EXPECT_EQ(prepared, nullptr);
  const double* const large = buffer.resize(kNumbers);
  EXPECT_EQ(prepared, large);
  EXPECT_EQ(prepared_bytes, kLargeScratch);
  prepared = nullptr;
  EXPECT_EQ(buffer.resize(kNumbers), large);
  EXPECT_EQ(prepared, nullptr);
  prepare_large_scratch = before;
}

}  // namespace
}  // namespace attnscope
