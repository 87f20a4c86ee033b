// SPDX-License-Identifier: MIT
#include "bindings/threads.h"

#include <pthread.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "bindings/torch_symbols.h"

namespace attnscope {
namespace {

namespace py = pybind11;

// Whether this process came from fork(). GNU's OpenMP keeps its threads for the next parallel
// region; a child has none of them and would wait for them for ever.
std::atomic<bool> forked{false};
[[maybe_unused]] const int watching =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

void call_on_new_threads(int workers, const std::function<void(int worker)>& work) {
  std::vector<std::thread> others;
  for (int worker = 1; worker < workers; ++worker) {
    try {
      others.emplace_back(work, worker);
    } catch (const std::system_error&) {
      break;  // no more threads to be had: those that are there do the work
    }
  }
  work(0);
  for (std::thread& other : others) other.join();
}

struct Region {
  const std::function<void(int worker)>* work;
  std::atomic<int> next{0};
};

}  // namespace

int thread_count() {
  std::uint32_t threads = 1;
  if (torch_get_num_threads != nullptr) {
    if (torch_get_num_threads(&threads) != 0) threads = 1;
    return static_cast<int>(threads);
  }
  return py::module_::import("torch").attr("get_num_threads")().cast<int>();
}

void call_workers(int workers, const std::function<void(int worker)>& work) {
  if (workers == 1) return work(0);
#ifdef __SANITIZE_THREAD__
  // Which does not see how threads of OpenMP wait for each other.
  return call_on_new_threads(workers, work);
#endif
  if (forked.load(std::memory_order_relaxed)) return call_on_new_threads(workers, work);
  Region region{&work};
  if (torch_parallel_for != nullptr) {
    const auto run = [](std::int64_t begin, std::int64_t end, void* context) {
      for (std::int64_t worker = begin; worker < end; ++worker) {
        (*static_cast<Region*>(context)->work)(static_cast<int>(worker));
      }
    };
    if (torch_parallel_for(0, workers, 1, run, &region) != 0) work(0);
  } else if (GOMP_parallel != nullptr) {
    const auto run = [](void* context) {
      auto* const region_of_call = static_cast<Region*>(context);
      (*region_of_call->work)(region_of_call->next.fetch_add(1, std::memory_order_relaxed));
    };
    GOMP_parallel(run, &region, static_cast<unsigned>(workers), 0);
  } else {
    call_on_new_threads(workers, work);
  }
}

void share_parts(std::int64_t parts, int workers,
                 const std::function<void(std::int64_t part, int worker)>& work) {
  std::atomic<std::int64_t> left{parts};
  call_workers(static_cast<int>(std::min<std::int64_t>(workers, parts)), [&](int worker) {
    for (;;) {
      const std::int64_t part = left.fetch_sub(1, std::memory_order_relaxed) - 1;
      if (part < 0) return;
      work(part, worker);
    }
  });
}

const char* threads_name() {
  if (torch_parallel_for != nullptr) return "torch_parallel_for";
  return GOMP_parallel != nullptr ? "torch's OpenMP" : "threads of each call";
}

}  // namespace attnscope
