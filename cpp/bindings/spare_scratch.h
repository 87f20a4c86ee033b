// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace attnscope {

// Scratch that a call leaves for the next one: memory fresh from the system costs a page fault per
// 4096 bytes, which at 256 tokens takes longer than a spanning tree. Calls that run at once make
// scratch of their own, and none waits for another, nor a child of fork() for its parent.
template <class Scratch>
class SpareScratch {
 public:
  std::unique_ptr<Scratch> take() {
    std::unique_ptr<Scratch> scratch(spare_.exchange(nullptr));
    return scratch ? std::move(scratch) : std::make_unique<Scratch>();
  }
  void leave(std::unique_ptr<Scratch> scratch) { delete spare_.exchange(scratch.release()); }

 private:
  std::atomic<Scratch*> spare_{nullptr};  // for as long as the process lives
};

}  // namespace attnscope
