// SPDX-License-Identifier: MIT
#include "kernels/clouds/local_dimension.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnscope {
namespace {

// Distances of points that are equally far, as in a turned grid, differ by rounding: logarithms of
// distances that are as near as this are equal.
constexpr double kRounding = 1e-12;

double log_ratio(double log_far, double log_near) {
  const double ratio = log_far - log_near;
  return ratio > kRounding ? ratio : 0.0;
}

// Writes the logarithms of the distances of the `wanted` nearest members to `out`; how many there
// are.
Index nearest_members(const Neighbours& neighbours, const bool* member, Index i, Index most,
                      double* out) {
  const double* log = neighbours.log.data() + i * neighbours.n;
  const Index count = neighbours.count[i];
  if (member == nullptr) {
    const Index nearest = std::min(most, count);
    std::copy_n(log, nearest, out);
    return nearest;
  }
  const std::int32_t* index = neighbours.index.data() + i * neighbours.n;
  Index nearest = 0;
  for (Index j = 0; j < count && nearest < most; ++j) {
    out[nearest] = log[j];
    nearest += member[index[j]] ? 1 : 0;
  }
  return nearest;
}

bool equals_a_member(const Neighbours& neighbours, const bool* member, Index i) {
  const Index begin = neighbours.equal_begin[i];
  const Index end = neighbours.equal_begin[i + 1];
  if (member == nullptr) return begin < end;
  return std::any_of(neighbours.equal.begin() + begin, neighbours.equal.begin() + end,
                     [member](std::int32_t j) { return member[j]; });
}

}  // namespace

void reset_neighbours(Index n, Neighbours& neighbours) {
  neighbours.n = n;
  const auto size = static_cast<std::size_t>(n);
  neighbours.index.resize(size * size);
  neighbours.log.resize(size * size);
  neighbours.count.assign(size, 0);
  neighbours.equal.clear();
  neighbours.equal_begin.assign(size + 1, 0);
}

template <class Scalar>
void sort_neighbours(const MatrixView<Scalar>& distances, const std::int64_t* groups, Index i,
                     Index most, Neighbours& neighbours, std::vector<std::int32_t>& equal,
                     NeighbourScratch& scratch) {
  using Entry = NeighbourScratch::Entry;
  const Index n = distances.rows();
  std::vector<Entry>& entries = scratch.entries;
  entries.resize(n);
  Entry* out = entries.data();
  for (Index j = 0; j < n; ++j) {
    const double distance = static_cast<double>(distances(i, j));
    *out = {distance, static_cast<std::int32_t>(j)};
    if (j == i) continue;
    if (distance == 0.0) {
      equal.push_back(static_cast<std::int32_t>(j));
      continue;
    }
    if (!(distance < std::numeric_limits<double>::infinity())) continue;
    out += groups == nullptr || groups[j] != groups[i] ? 1 : 0;
  }
  const auto nearer = [](const Entry& a, const Entry& b) {
    return a.distance != b.distance ? a.distance < b.distance : a.index < b.index;
  };
  Entry* const begin = entries.data();
  Index count = out - begin;
  if (most >= 0 && most < count) {
    std::nth_element(begin, begin + most, out, nearer);
    count = most;
  }
  std::sort(begin, begin + count, nearer);
  for (Index j = 0; j < count; ++j) {
    neighbours.index[i * n + j] = begin[j].index;
    neighbours.log[i * n + j] = std::log(begin[j].distance);
  }
  neighbours.count[i] = count;
}

Index local_dimension(const Neighbours& neighbours, const bool* member, const Index* neighbours_k,
                      Index count, const LocalDimensionResult& result,
                      std::vector<double>& scratch) {
  const Index n = neighbours.n;
  const Index largest = std::min(n, *std::max_element(neighbours_k, neighbours_k + count));
  scratch.resize(largest + count);
  double* const log = scratch.data();
  double* const sums = log + largest;
  std::fill_n(sums, count, 0.0);
  std::fill_n(result.used, count, std::int64_t{0});
  std::fill_n(result.tied, count, std::int64_t{0});
  Index duplicates = 0;
  for (Index i = 0; i < n; ++i) {
    if (member != nullptr && !member[i]) continue;
    duplicates += equals_a_member(neighbours, member, i) ? 1 : 0;
    const Index members = nearest_members(neighbours, member, i, largest, log);
    for (Index a = 0; a < count; ++a) {
      const Index k = neighbours_k[a];
      if (members < k) continue;
      const double farthest = log[k - 1];
      double sum = 0.0;
      for (Index j = 0; j + 1 < k; ++j) sum += log_ratio(farthest, log[j]);
      if (!(sum > 0.0)) {
        ++result.tied[a];
        continue;
      }
      ++result.used[a];
      sums[a] += sum;
      if (k > 2) result.points[a * n + i] = static_cast<double>(k - 2) / sum;
    }
  }
  for (Index a = 0; a < count; ++a) {
    const double total = static_cast<double>(result.used[a] * (neighbours_k[a] - 1));
    result.value[a] = result.used[a] > 0 ? total / sums[a] : kNaN;
  }
  return duplicates;
}

double two_nn(const Neighbours& neighbours, const bool* member, double discard,
              std::vector<double>& scratch) {
  scratch.clear();
  for (Index i = 0; i < neighbours.n; ++i) {
    if (member != nullptr && !member[i]) continue;
    double log[2];
    if (nearest_members(neighbours, member, i, 2, log) == 2)
      scratch.push_back(log_ratio(log[1], log[0]));
  }
  const auto size = static_cast<double>(scratch.size());
  double sum = 0.0;
  if (discard == 0.0) {
    for (const double ratio : scratch) sum += ratio;
    return sum > 0.0 && size >= 2.0 ? (size - 1.0) / sum : kNaN;
  }
  std::sort(scratch.begin(), scratch.end());
  // The product's own rounding does not leave a whole number short.
  const auto smallest = static_cast<std::size_t>(std::floor(size * (1.0 - discard) + 1e-9));
  double products = 0.0;
  for (std::size_t i = 0; i < smallest && i + 1 < scratch.size(); ++i) {
    const double tail = -std::log1p(-static_cast<double>(i + 1) / size);
    products += scratch[i] * tail;
    sum += scratch[i] * scratch[i];
  }
  return sum > 0.0 ? products / sum : kNaN;
}

ATTNSCOPE_COMPILE(sort_neighbours);

}  // namespace attnscope
