// SPDX-License-Identifier: MIT
// Prints the results of every kernel on fixed maps, bit by bit, to be compared with those of
// another processor: `.ci/isas aarch64`. Entries are quotients of whole numbers, which every
// processor rounds alike, so that only the kernels can differ.
#include <cinttypes>
#include <cstdio>
#include <random>

#include "every_kernel.h"
#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

RowMatrix<double> make_map(Index n, bool causal) {
  std::mt19937 generator(static_cast<unsigned>(2 * n + causal));
  RowMatrix<double> map = RowMatrix<double>::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    const Index end = causal ? i + 1 : n;
    double sum = 0.0;
    for (Index j = 0; j < end; ++j) {
      map(i, j) = static_cast<double>(generator() % 4096 + 1);
      sum += map(i, j);
    }
    for (Index j = 0; j < end; ++j) map(i, j) /= sum;
  }
  return map;
}

template <class Scalar>
void print_results(const RowMatrix<Scalar>& map, bool causal, const TriangularTable& table) {
  testing::EveryWorkspace work;
  testing::Record write;
  testing::record(map, table, work, write);
  std::size_t place = 0;
  for (const std::uint64_t bits : write.take()) {
    const bool is_single = sizeof(Scalar) == 4 || write.is_single(place);
    std::printf("%s %s %s %d %zu %016" PRIx64 "\n", is_single ? "float32" : "float64",
                sizeof(Scalar) == 8 ? "wide" : "narrow", causal ? "causal" : "full",
                static_cast<int>(map.rows()), place++, bits);
  }
}

}  // namespace
}  // namespace attnscope

int main() {
  using namespace attnscope;
  const TriangularTable table;
  for (const Index n : {9, 40, 70}) {
    for (const bool causal : {false, true}) {
      const RowMatrix<double> map = make_map(n, causal);
      print_results(map, causal, table);
      print_results(RowMatrix<float>(map.cast<float>()), causal, table);
    }
  }
}
