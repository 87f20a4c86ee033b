// SPDX-License-Identifier: MIT
// Kernels have no threads and no global state: no pool of threads, no cache of plans.
#define POCKETFFT_NO_MULTITHREADING
#define POCKETFFT_NO_VECTORS
#define POCKETFFT_CACHE_SIZE 0
#include "signals/fourier.h"

#include <pocketfft_hdronly.h>

#include <algorithm>
#include <map>
#include <vector>

namespace attnscope {

using Plan = pocketfft::detail::pocketfft_r<double>;

struct Fourier::Plans {
  std::map<Index, Plan> of_length;
  // A transform: Re 0, Re 1, Im 1, Re 2, Im 2, ...
  std::vector<double> values;

  // To the transform, or back without dividing by the size, in place.
  void transform(bool forward) {
    const std::size_t size = values.size();
    const Plan& plan = of_length.try_emplace(static_cast<Index>(size), size).first->second;
    plan.exec(values.data(), 1.0, forward);
  }

  // The squared magnitudes of the transform of x [count] and zeros up to `size`, as real parts.
  void square(const double* x, Index count, Index size) {
    values.assign(x, x + count);
    values.resize(size, 0.0);
    transform(true);
    values[0] *= values[0];
    for (Index re = 1; re < size; re += 2) {
      values[re] *= values[re];
      if (re + 1 == size) break;  // the Nyquist frequency of an even size is real
      values[re] += values[re + 1] * values[re + 1];
      values[re + 1] = 0.0;
    }
  }
};

Fourier::Fourier() : plans_(new Plans, [](Plans* plans) { delete plans; }) {}

void Fourier::power(const double* x, Index count, Index size, double* power) {
  plans_->square(x, count, size);
  power[0] = plans_->values[0];
  for (Index k = 1; k <= size / 2; ++k) power[k] = plans_->values[2 * k - 1];
}

void Fourier::autocorrelation(const double* x, Index count, double* out) {
  const Index size = fast_length(2 * count - 1);
  plans_->square(x, count, size);
  plans_->transform(false);
  for (Index k = 0; k < count; ++k) out[k] = plans_->values[k] / static_cast<double>(size);
}

Index fast_length(Index count) {
  for (Index quarters = std::max<Index>(1, (count + 3) / 4);; ++quarters) {
    Index rest = quarters;
    for (const Index prime : {2, 3, 5}) {
      while (rest % prime == 0) rest /= prime;
    }
    if (rest == 1) return 4 * quarters;
  }
}

}  // namespace attnscope
