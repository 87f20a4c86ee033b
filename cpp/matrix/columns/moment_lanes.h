// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>

#include "matrix/columns/pair_moments.h"
#include "matrix/rows.h"

// Moments of many disjoint sets of pairs, several in a vector. Only kernel sources include it.
namespace attnscope {

// Field by field in memory of the caller's, for at most `capacity` sets; a lane without pairs
// counts as none.
class MomentLanes {
 public:
  static Index size(Index capacity) { return kFields * (capacity + 2 * kPackWidth); }

  MomentLanes(double* memory, Index capacity)
      : fields_(memory), stride_(capacity + 2 * kPackWidth) {}

  // Those of a vector of sets; of a lane whose count is 0 the means must be finite.
  void put(Lanes count, Lanes mean_a, Lanes mean_c, Lanes aa, Lanes ac, Lanes cc) {
    assert(size_ + kPackWidth <= stride_);
    const Lanes fields[kFields] = {count, mean_a, mean_c, aa, ac, cc};
    for (Index k = 0; k < kFields; ++k) store(fields_ + k * stride_ + size_, fields[k]);
    size_ += kPackWidth;
  }

  void put(const PairMoments& set) {
    assert(size_ < stride_);
    const double fields[kFields] = {set.count, set.mean_a, set.mean_c, set.aa, set.ac, set.cc};
    for (Index k = 0; k < kFields; ++k) fields_[k * stride_ + size_] = fields[k];
    ++size_;
  }

  // The moments of all pairs together; exactly 0 where a variable is the same constant in all.
  PairMoments together() {
    const Index end = (size_ + kPackWidth - 1) / kPackWidth * kPackWidth;
    for (Index k = 0; k < kFields; ++k)
      std::fill(fields_ + k * stride_ + size_, fields_ + k * stride_ + end, 0.0);
    Index first = 0;
    while (first < size_ && fields_[first] == 0.0) ++first;
    if (first == size_) return {};
    const auto at = [&](Field field, Index j) { return load(fields_ + field * stride_ + j); };
    const double mean_a = fields_[kMeanA * stride_ + first];
    const double mean_c = fields_[kMeanC * stride_ + first];
    Lanes count{}, shift_a{}, shift_c{};
    for (Index j = 0; j < end; j += kPackWidth) {
      count += at(kCount, j);
      shift_a += at(kCount, j) * (at(kMeanA, j) - mean_a);
      shift_c += at(kCount, j) * (at(kMeanC, j) - mean_c);
    }
    PairMoments all;
    all.count = sum_of_lanes(count);
    all.mean_a = mean_a + sum_of_lanes(shift_a) / all.count;
    all.mean_c = mean_c + sum_of_lanes(shift_c) / all.count;
    Lanes aa{}, ac{}, cc{};
    for (Index j = 0; j < end; j += kPackWidth) {
      const Lanes da = at(kMeanA, j) - all.mean_a;
      const Lanes dc = at(kMeanC, j) - all.mean_c;
      aa += at(kAA, j) + at(kCount, j) * da * da;
      ac += at(kAC, j) + at(kCount, j) * da * dc;
      cc += at(kCC, j) + at(kCount, j) * dc * dc;
    }
    all.aa = sum_of_lanes(aa);
    all.ac = sum_of_lanes(ac);
    all.cc = sum_of_lanes(cc);
    return all;
  }

 private:
  enum Field { kCount, kMeanA, kMeanC, kAA, kAC, kCC };
  static constexpr Index kFields = 6;

  double* fields_;
  Index stride_;
  Index size_ = 0;
};

}  // namespace attnscope
