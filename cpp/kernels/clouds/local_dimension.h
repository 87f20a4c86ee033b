// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"

// How many directions a cloud of points has around each of them, from the distances of its nearest
// neighbours.
namespace attnscope {

// The neighbours of every point of a cloud, from near to far. Points at distance 0 or infinity are
// no neighbours; where groups are given, neither are those of the same group.
struct Neighbours {
  Index n = 0;
  std::vector<std::int32_t> index;  // [n, n]: neighbours of each point
  std::vector<double> log;          // [n, n]: of their distances
  std::vector<Index> count;         // [n]: how many are kept of each
  // Other points at distance 0: those of point i stand from equal_begin[i] to equal_begin[i + 1].
  std::vector<std::int32_t> equal;
  std::vector<Index> equal_begin;
};

// Scratch of one row.
struct NeighbourScratch {
  struct Entry {
    double distance;
    std::int32_t index;
  };
  std::vector<Entry> entries;
};

// Makes room for n points; the rows are filled by sort_neighbours.
void reset_neighbours(Index n, Neighbours& neighbours);

// Finds the `wanted` nearest neighbours of point i, all where wanted < 0, and appends the points at
// distance 0 to `equal`. `distances` is symmetric, not negative and not NaN; only row i is read.
// `groups` [n], or null. Cost O(n) and O(wanted log wanted).
template <class Scalar>
void sort_neighbours(const MatrixView<Scalar>& distances, const std::int64_t* groups, Index i,
                     Index most, Neighbours& neighbours, std::vector<std::int32_t>& equal,
                     NeighbourScratch& scratch);

// The local dimension of a subset of the points (all where `member` is null): for every k of
// `neighbours_k` [count >= 1], each >= 2, S_i = Σ_{j<k} log(r_k/r_j) over the k nearest members,
// and value = Σ (k − 1)/Σ S_i over the `used` points with k neighbours and S_i > 0, NaN where there
// is none; `tied` points have S_i = 0. A log ratio of at most 1e-12 is rounding and counts as 0.
// `points` [count, n] gets (k − 2)/S_i, and keeps what it holds at other points and for k = 2.
// Returns how many members equal another member. What a subset gives is what a cloud of it alone
// gives, bit for bit. Cost O(n·k) where members are not rare, at worst O(n²).
struct LocalDimensionResult {
  double* value;
  double* points;
  std::int64_t* used;
  std::int64_t* tied;
};
Index local_dimension(const Neighbours& neighbours, const bool* member, const Index* neighbours_k,
                      Index count, const LocalDimensionResult& result,
                      std::vector<double>& scratch);

// (N − 1)/Σ log(r_2/r_1) over the N members with two neighbours, NaN where N < 2 or all are tied,
// that is, where each log ratio is at most 1e-12, which is rounding.
// With `discard` > 0 the slope through the origin of −log(1 − i/N) on the ascending log ratios,
// without that fraction of the largest.
double two_nn(const Neighbours& neighbours, const bool* member, double discard,
              std::vector<double>& scratch);

}  // namespace attnscope
