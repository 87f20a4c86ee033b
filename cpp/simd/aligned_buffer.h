// SPDX-License-Identifier: MIT
#pragma once

#include <cassert>
#include <cstddef>
#include <memory>
#include <new>

#include "simd/index.h"

namespace attnscope {

// Scratch of float64 numbers on a cache line's boundary, which grows and is reused over a batch. What
// `resize` returns is not initialised and does not keep what was there.
class AlignedBuffer {
 public:
  double* resize(Index size) {
    assert(size >= 0);
    if (size > capacity_) {
      data_.reset(static_cast<double*>(
          ::operator new(static_cast<std::size_t>(size) * sizeof(double), std::align_val_t{64})));
      capacity_ = size;
    }
    return data_.get();
  }

 private:
  struct Free {
    void operator()(double* data) const { ::operator delete(data, std::align_val_t{64}); }
  };
  std::unique_ptr<double, Free> data_;
  Index capacity_ = 0;
};

}  // namespace attnscope
