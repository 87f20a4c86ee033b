// SPDX-License-Identifier: MIT
#include "bindings/batched.h"

#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "bindings/threads.h"

namespace attnscope {
std::vector<Index> batch_order(const Batch& batch) {
  std::vector<Index> order(batch.count);
  std::iota(order.begin(), order.end(), Index{0});
  if (batch.lengths != nullptr) {
    std::ranges::stable_sort(order, std::greater<>(),
                             [&](Index index) { return batch.lengths[index]; });
  }
  return order;
}

Index side_by_side(const Batch& batch) {
  // Two copies of which both stay in the third-level cache.
  constexpr Index kMostBytes = Index{1} << 23;
  constexpr Index kLine = 64;
  if (batch.sizes.empty() || batch.lengths != nullptr || batch.count == 0) return 1;
  const Index heads = batch.sizes.back();
  if (batch.strides.back() != 1 || heads < 2) return 1;
  if (batch.column_stride < heads || batch.row_stride < heads) return 1;
  const Index bytes = batch.dtype == Dtype::float64 ? 8 : batch.dtype == Dtype::float32 ? 4 : 2;
  const Index width = std::min(heads, kLine / bytes);
  return width * batch.queries * batch.n * bytes <= kMostBytes ? width : 1;
}

bool heads_lie_together(const Batch& batch) {
  return !batch.sizes.empty() && batch.count > 0 && batch.strides.back() == 1 &&
         batch.sizes.back() > 1 && batch.column_stride == batch.sizes.back() &&
         batch.row_stride >= batch.n * batch.column_stride && batch.lengths == nullptr &&
         batch.query_lengths == nullptr && batch.positions == nullptr;
}

Index block_size(const Batch& batch, Index width, Index entries) {
  const Index matrices = entries / std::max<Index>(1, batch.queries * batch.n);
  return std::max<Index>(1, matrices / width) * width;
}

Index even_block(Index count, Index most) {
  const Index blocks = (count + most - 1) / most;
  const Index workers = worker_count(blocks);
  const Index of_worker = std::max<Index>(1, (blocks + workers - 1) / workers);
  return std::max<Index>(1, (count + of_worker * workers - 1) / (of_worker * workers));
}

Index shared_pack_width(const Batch& batch, Index width) {
  const Index packs = (batch.count + width - 1) / width;
  const bool is_large = block_size(batch, 1) < width;
  return is_large && packs < worker_count(batch.count) ? std::max<Index>(1, width / 2) : width;
}

int worker_count(Index count) {
  return static_cast<int>(std::max<Index>(1, std::min<Index>(count, thread_count())));
}

void run_blocks(Index count, Index grain,
                const std::function<void(Index begin, Index end, int worker)>& work, Index most) {
  if (count <= 0) return;
  // None is woken that would find no block.
  const int workers = worker_count((count + grain - 1) / grain);
  // A quarter of a worker's share of what is left.
  const auto block_at = [&](Index begin) {
    return std::clamp((count - begin) / (4 * workers), grain, std::max(grain, most));
  };
  std::atomic<Index> next{0};
  std::atomic<bool> stop{false};
  std::exception_ptr failure;
  std::mutex failure_lock;
  bool interrupted = false;
  const auto calling_thread = std::this_thread::get_id();

  {
    // Safe without the GIL: from here on only memory that the caller's frame keeps alive is
    // touched.
    py::gil_scoped_release release;
    const auto drain = [&](int worker) {
      const bool listens = std::this_thread::get_id() == calling_thread;
      auto heard = std::chrono::steady_clock::now();
      while (!stop.load(std::memory_order_relaxed)) {
        Index begin = next.load(std::memory_order_relaxed), end = 0;
        do {
          if (begin >= count) return;
          end = std::min(begin + block_at(begin), count);
        } while (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed));
        try {
          work(begin, end, worker);
        } catch (...) {
          const std::lock_guard<std::mutex> guard(failure_lock);
          if (!failure) failure = std::current_exception();
          stop.store(true);
        }
        const auto now = std::chrono::steady_clock::now();
        if (!listens || now - heard < std::chrono::milliseconds(100)) continue;
        heard = now;
        const py::gil_scoped_acquire acquire;
        if (PyErr_CheckSignals() != 0) {
          // The error stays set on this thread and is thrown once every worker has stopped.
          interrupted = true;
          stop.store(true);
        }
      }
    };
    call_workers(workers, drain);
  }
  if (interrupted) throw py::error_already_set();
  if (failure) std::rethrow_exception(failure);
}

}  // namespace attnscope
