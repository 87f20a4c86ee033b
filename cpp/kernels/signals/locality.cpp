// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <algorithm>

#include "matrix/row_groups/fast_near_and_far.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// Attention near and far, as sums of lanes; every second vector of a long run has its own, so that
// an addition does not wait for the one before.
struct NearAndFar {
  Lanes near{};
  Lanes far{};
  Lanes more_far{};

  // Adds entries [first, end) of a row of n, of which [from, to) are near.
  template <class Entry>
  void add(const Entry* row, Index first, Index from, Index to, Index end, Index n) {
    const auto at = [&](Index j) {
      const Lanes x = j + kPackWidth <= end ? load(row + j) : load_head(row + j, end - j, n - j);
      return j >= first ? x : without(x, first_lanes(first - j));
    };
    Index j = 0;
    if (first > 0 && from >= kPackWidth) {
      far += at(0);
      j = kPackWidth;
    }
    j = add_far(row, j, from);
    for (; j < to; j += kPackWidth) {
      const Lanes x = at(j);
      const LaneMask is_near = first_lanes(to - j) & ~first_lanes(from - j);
      near += without(x, ~is_near);
      far += without(x, is_near);
    }
    j = add_far(row, j, end);
    if (j < end) far += at(j);
  }

 private:
  // Whole vectors of [j, end); returns where they end.
  template <class Entry>
  Index add_far(const Entry* row, Index j, Index end) {
    for (; j + 2 * kPackWidth <= end; j += 2 * kPackWidth) {
      far += load(row + j);
      more_far += load(row + j + kPackWidth);
    }
    if (j + kPackWidth > end) return j;
    far += load(row + j);
    return j + kPackWidth;
  }

  static Lanes without(Lanes x, LaneMask lanes) {
    return reinterpret_cast<Lanes>(reinterpret_cast<LaneMask>(x) & ~lanes);
  }
};

// Vectors of heads whose sums are in registers together, two of each.
constexpr Index kMostVectors = kPackWidth == 8 ? 8 : 4;

// Adds kVectors vectors of heads, those of the keys [begin, end) of a row in which keys are
// `heads` entries apart, to their sums: even and odd keys by themselves first, so that an addition
// does not wait for the one before.
template <Index kVectors, class Scalar>
void add_keys(const Scalar* row, Index heads, Index begin, Index end, Lanes* sums) {
  Lanes even[kVectors] = {}, odd[kVectors] = {};
  Index j = begin;
  for (; j + 2 <= end; j += 2) {
    const Scalar* key = row + j * heads;
#pragma GCC unroll 8
    for (Index v = 0; v < kVectors; ++v) {
      even[v] += load(key + v * kPackWidth);
      odd[v] += load(key + heads + v * kPackWidth);
    }
  }
  if (j < end) {
#pragma GCC unroll 8
    for (Index v = 0; v < kVectors; ++v) even[v] += load(row + j * heads + v * kPackWidth);
  }
#pragma GCC unroll 8
  for (Index v = 0; v < kVectors; ++v) sums[v] += even[v] + odd[v];
}

// The sums of kVectors vectors of heads, of which `first` is the first.
template <Index kVectors, class Scalar>
void sum_heads(const MatrixView<Scalar>& layer, Index heads, Index first, Index place, Index window,
               const NearAndFarSums& out) {
  const Index n = layer.cols() / heads;
  Lanes near[kVectors] = {}, far[kVectors] = {};
  for (Index i = 0; i < layer.rows(); ++i) {
    const Scalar* row = layer.data() + i * layer.outerStride() + first;
    const Index from = std::clamp<Index>(place + i - window, 0, n);
    const Index to = std::clamp<Index>(place + i + window + 1, from, n);
    add_keys<kVectors>(row, heads, 0, from, far);
    add_keys<kVectors>(row, heads, from, to, near);
    add_keys<kVectors>(row, heads, to, n, far);
  }
  for (Index v = 0; v < kVectors; ++v) {
    store(out.near + first + v * kPackWidth, near[v]);
    store(out.far + first + v * kPackWidth, far[v]);
  }
}

// The same of up to kCount vectors.
template <Index kCount, class Scalar>
void sum_some_heads(Index vectors, const MatrixView<Scalar>& layer, Index heads, Index first,
                    Index place, Index window, const NearAndFarSums& out) {
  if (vectors == kCount) return sum_heads<kCount>(layer, heads, first, place, window, out);
  if constexpr (kCount > 1)
    sum_some_heads<kCount - 1>(vectors, layer, heads, first, place, window, out);
}

}  // namespace

bool are_summed_together(Index heads) { return heads >= kPackWidth; }

template <class Scalar>
void near_and_far_sums(const MatrixView<Scalar>& layer, Index heads, Index place, Index window,
                       const NearAndFarSums& out) {
  assert(are_summed_together(heads) && layer.innerStride() == 1);
  Index first = 0;
  for (; first + kPackWidth <= heads;) {
    const Index vectors = std::min(kMostVectors, (heads - first) / kPackWidth);
    sum_some_heads<kMostVectors>(vectors, layer, heads, first, place, window, out);
    first += vectors * kPackWidth;
  }
  // The heads that are left, with some before them once more.
  if (first < heads) sum_heads<1>(layer, heads, heads - kPackWidth, place, window, out);
}

template <class Scalar>
bool local_global_ratio(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                        Index window, bool drop_first, double& ratio, RowScratch& scratch,
                        bool fast) {
  const Index n = attention.cols();
  if (NearAndFarSum in_float32;
      fast && !drop_first &&
      fast_near_and_far(attention, find_support, support, window, in_float32)) {
    ratio = in_float32.near / in_float32.far;
    return true;
  }
  // Every entry is in a sum, or 0 where a map was found to be causal, unless one is left out.
  const bool every_entry = find_support && !drop_first;
  if (!every_entry && !all_finite(attention)) return false;
  if (find_support) {
    support.kind =
        is_causal(attention, support.shift) ? Support::Kind::causal : Support::Kind::full;
  }
  NearAndFar sums;
  const auto add = [&](Index i, const auto* row, Index end) {
    const Index first = drop_first ? std::min<Index>(1, end) : 0;
    const Index place = support.position(i);
    const Index from = std::clamp<Index>(place - window, first, end);
    sums.add(row, first, from, std::clamp<Index>(place + window + 1, from, end), end, n);
  };
  if (attention.innerStride() == 1 && support.kind != Support::Kind::mask) {
    for (Index i = 0; i < attention.rows(); ++i)
      add(i, attention.data() + i * attention.outerStride(), support.end(i, n));
  } else {
    for_each_row(attention, support, scratch, add);
  }
  const double near = sum_of_lanes(sums.near);
  const double far = sum_of_lanes(sums.far + sums.more_far);
  // A sum of finite float64 numbers can overflow, one of the shorter types cannot.
  if (every_entry && (near + far) * 0.0 != 0.0 &&
      (!std::is_same_v<Scalar, double> || !all_finite(attention))) {
    return false;
  }
  ratio = near / far;
  return true;
}

ATTNSCOPE_COMPILE(local_global_ratio);
ATTNSCOPE_COMPILE(near_and_far_sums);

}  // namespace attnscope
