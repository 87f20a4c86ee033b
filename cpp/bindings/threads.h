// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>

// torch's own threads, through functions with C linkage: one pool for torch and attnscope, of the
// size that torch.set_num_threads says.
namespace attnscope {

// What torch.get_num_threads() answers on this thread, which holds the GIL.
int thread_count();

// Calls work(worker) for each of `workers`, one of them on the calling thread. `work` must not
// throw. Where fewer threads can be had, fewer workers are called, never none.
void call_workers(int workers, const std::function<void(int worker)>& work);

// Calls work(part, worker) for each of `parts`, the last first, on so many workers, from a kernel
// beside which no other worker runs. `work` must not throw.
void share_parts(std::int64_t parts, int workers,
                 const std::function<void(std::int64_t part, int worker)>& work);

// Whose threads these are.
const char* threads_name();

}  // namespace attnscope
