// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "matrix/matrix_view.h"

namespace attnscope {

// Discrete Fourier transforms of real signals of many lengths. Plans are kept per length, so one
// object serves a worker for as long as a batch lasts.
class Fourier {
 public:
  Fourier();

  // |Σ_t x_t exp(−2πikt/size)|² for k = 0 .. size/2 to `power` [size/2 + 1]: x [count >= 1] is
  // followed by zeros up to `size` >= count. Fastest where fast_length(size) == size.
  void power(const double* x, Index count, Index size, double* power);

  // Σ_t x_t x_{t+k} for k = 0 .. count − 1 to `out` [count].
  void autocorrelation(const double* x, Index count, double* out);

 private:
  struct Plans;
  std::unique_ptr<Plans, void (*)(Plans*)> plans_;
};

// The smallest multiple of 4 that is >= count and has no prime factor above 5.
Index fast_length(Index count);

}  // namespace attnscope
