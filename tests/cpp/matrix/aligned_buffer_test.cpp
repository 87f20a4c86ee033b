// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>

#include <cstdint>

#if defined(__linux__)
#include <fstream>
#include <sstream>
#include <string>
#endif

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

#if defined(__linux__)
// The flags that the system keeps of the pages around an address.
std::string page_flags(const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool holds_address = false;
  while (std::getline(maps, line)) {
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream words(line);
    if (words >> std::hex >> begin >> dash >> end && dash == '-')
      holds_address = begin <= at && at < end;
    if (holds_address && line.starts_with("VmFlags:")) return line + ' ';
  }
  return {};
}

TEST(AlignedBufferTest, LargeScratchAsksForHugePages) {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled"))
    GTEST_SKIP() << "this system has no huge pages";
  AlignedBuffer large;
  const double* const numbers = large.resize(Index{1} << 21);
  EXPECT_NE(page_flags(numbers + (Index{1} << 20)).find(" hg "), std::string::npos)
      << page_flags(numbers + (Index{1} << 20));
}
#endif

}  // namespace
}  // namespace attnscope
