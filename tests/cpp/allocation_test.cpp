// SPDX-License-Identifier: MIT
// Every allocation of every kernel fails once: std::bad_alloc comes out, nothing leaks, and the
// next call with the same scratch gives the bits of one that was never disturbed. This program has
// malloc and operator new of its own (the linker's --wrap), so that the n-th request can be
// refused.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "every_kernel.h"
#include "matrices.h"

extern "C" {
void* __real_malloc(std::size_t bytes);
void __real_free(void* block);
}

namespace {

// Requests since counting began, the one that is refused (0: none), and blocks that are held since
// tracking began.
std::int64_t requests = 0;
std::int64_t refused = 0;
std::int64_t held = 0;
bool counting = false;
bool tracking = false;

bool is_refused() { return counting && ++requests == refused; }

void* take(std::size_t bytes) {
  if (is_refused()) return nullptr;
  void* const block = __real_malloc(bytes);
  if (tracking && block != nullptr) ++held;
  return block;
}

void give_back(void* block) {
  if (tracking && block != nullptr) --held;
  __real_free(block);
}

void* take_or_throw(std::size_t bytes) {
  void* const block = take(bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

extern "C" {
void* __wrap_malloc(std::size_t bytes) { return take(bytes); }
void __wrap_free(void* block) { give_back(block); }
}
void* operator new(std::size_t bytes) { return take_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return take_or_throw(bytes); }
// A stable sort asks for room that it can do without; a sanitizer has its own of these too.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return take(bytes); }
void operator delete(void* block) noexcept { give_back(block); }
void operator delete[](void* block) noexcept { give_back(block); }
void operator delete(void* block, std::size_t) noexcept { give_back(block); }
void operator delete[](void* block, std::size_t) noexcept { give_back(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { give_back(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { give_back(block); }

namespace attnscope {
namespace {

using testing::Bits;
using testing::RowMatrix;

// Calls every kernel with the given scratch, the request `number` refused (0: none); sets `failed`
// where an exception came out.
template <class Scalar>
Bits record_refusing(const RowMatrix<Scalar>& matrix, const TriangularTable& table,
                     testing::EveryWorkspace& work, std::int64_t number, bool& failed) {
  testing::Record write;
  failed = false;
  requests = 0;
  refused = number;
  counting = true;
  try {
    testing::record(matrix, table, work, write);
  } catch (const std::bad_alloc&) {
    failed = true;
  }
  counting = false;
  return write.take();
}

template <class Scalar>
std::int64_t fail_every_allocation(const RowMatrix<Scalar>& matrix) {
  const TriangularTable table;
  bool failed = false;
  std::int64_t count = 0;
  Bits expected;
  {
    testing::EveryWorkspace work;
    expected = record_refusing(matrix, table, work, 0, failed);
    count = requests;
    EXPECT_FALSE(failed);
    EXPECT_GT(expected.size(), 100u);
  }
  for (std::int64_t number = 1; number <= count; ++number) {
    held = 0;
    tracking = true;
    {
      testing::EveryWorkspace work;
      const Bits disturbed = record_refusing(matrix, table, work, number, failed);
      // A stable sort does without the room that it asked for.
      EXPECT_TRUE(failed || disturbed == expected) << "request " << number << " of " << count;
      const Bits after = record_refusing(matrix, table, work, 0, failed);
      EXPECT_FALSE(failed);
      EXPECT_TRUE(after == expected) << "after request " << number << " was refused";
    }  // what the scratch holds is given back here
    tracking = false;
    EXPECT_EQ(held, 0) << "after request " << number << " was refused";
  }
  return count;
}

void expect_some(std::int64_t count) {
  std::printf("allocations that failed: %lld\n", static_cast<long long>(count));
  EXPECT_GT(count, 250);
}

TEST(Allocation, EveryOneFailsOnceInEveryKernel) {
  for (const bool causal : {false, true}) {
    const RowMatrix<double> wide = testing::random_attention(20, causal, 1);
    expect_some(fail_every_allocation(wide));
    expect_some(fail_every_allocation(RowMatrix<float>(wide.cast<float>())));
  }
}

TEST(Allocation, EveryOneFailsOnceBeyondTheSizesThatArePacked) {
  expect_some(fail_every_allocation(testing::random_attention(100, true, 2)));
}

}  // namespace
}  // namespace attnscope
