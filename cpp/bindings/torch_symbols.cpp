// SPDX-License-Identifier: MIT
// Stands in for libtorch_cpu.so while the core is linked, so that a build needs no torch: it has
// the name and the symbols, and nobody runs it. At import the core is beside the torch that is in
// the process.
#include "bindings/torch_symbols.h"

std::int32_t torch_parallel_for(std::int64_t, std::int64_t, std::int64_t,
                                void (*)(std::int64_t, std::int64_t, void*), void*) {
  return 1;
}
std::int32_t torch_get_num_threads(std::uint32_t*) { return 1; }
void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned) {}
