// SPDX-License-Identifier: MIT
// Every kernel from eight threads at once, on shared inputs and scratch of their own: the same bits
// as on one thread, and under ThreadSanitizer no race. Kernels start no threads and hold no global
// state, so plain threads show what OpenMP's would, without its runtime, which ThreadSanitizer
// cannot see into.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <thread>
#include <vector>

#include "every_kernel.h"
#include "matrices.h"

namespace attnscope {
namespace {

using testing::Bits;
using testing::RowMatrix;

struct Inputs {
  std::vector<RowMatrix<double>> wide;
  std::vector<RowMatrix<float>> narrow;
  TriangularTable table;
};

Bits record_all(const Inputs& inputs) {
  testing::Record write;
  for (const auto& matrix : inputs.wide) {
    testing::EveryWorkspace work;
    testing::record(matrix, inputs.table, work, write);
  }
  for (const auto& matrix : inputs.narrow) {
    testing::EveryWorkspace work;
    testing::record(matrix, inputs.table, work, write);
  }
  return write.take();
}

TEST(Threads, EveryKernelFromEightThreadsGivesTheBitsOfOne) {
  Inputs inputs;
  for (const Index n : {9, 40, 70}) {
    for (const bool causal : {false, true}) {
      inputs.wide.push_back(testing::random_attention(n, causal, unsigned(n)));
      inputs.narrow.push_back(
          testing::random_attention(n, causal, unsigned(n + 1), 3.0).cast<float>());
    }
  }
  const Bits expected = record_all(inputs);
  EXPECT_GT(expected.size(), 1000u);
  std::vector<Bits> by_thread(8);
  std::vector<std::thread> threads;
  for (Bits& bits : by_thread) threads.emplace_back([&] { bits = record_all(inputs); });
  for (std::thread& thread : threads) thread.join();
  for (const Bits& bits : by_thread) EXPECT_EQ(bits, expected);
}

}  // namespace
}  // namespace attnscope
