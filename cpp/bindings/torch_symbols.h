// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// The functions of torch's libraries that the core calls, all with C linkage. torch's stable C
// interface (torch/csrc/stable/c/shim.h) has the first two from 2.10 on; the third is that of the
// OpenMP library that an earlier torch loads and runs its own loops with. Each is weak: its address
// is null where it is missing.
extern "C" {
__attribute__((weak)) std::int32_t torch_parallel_for(
    std::int64_t begin, std::int64_t end, std::int64_t grain,
    void (*work)(std::int64_t begin, std::int64_t end, void* context), void* context);
__attribute__((weak)) std::int32_t torch_get_num_threads(std::uint32_t* threads);
__attribute__((weak)) void GOMP_parallel(void (*work)(void* context), void* context,
                                         unsigned threads, unsigned flags);
}
