// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "graphs/graph_options.h"
#include "linalg/shifted_lanczos.h"
#include "matrix/rows.h"
#include "matrix/widen.h"
#include "simd/transpose.h"

// The weights of a matrix's graph, row by row, for those that fill their own layout of the
// Laplacian.
namespace attnscope {

// Rows of a symmetric matrix that are gathered from its columns at once, a cache line of each.
inline constexpr Index kColumnBlock = 16;

// How many components the graph of the positive weights has, or `most` where it has as many or
// more; by breadth-first search. weight(i, j) needs i > j. Where there are several, `queue` begins
// with the nodes of the first, which are *first many.
template <class Weight>
Index count_graph_components(Index n, std::vector<Index>& queue, Weight&& weight,
                             Index most = std::numeric_limits<Index>::max(),
                             Index* first = nullptr) {
  Index direct = 1;
  while (direct < n && weight(direct, 0) > 0.0) ++direct;
  if (direct == n) return 1;  // node 0 touches all: every map with a sink, and most others
  queue.resize(n);
  for (Index i = 0; i < n; ++i) queue[i] = i;
  // queue[0, reached) is reached, the rest is not; where the search ends, the next node begins
  // another.
  Index components = 1;
  Index reached = 1;
  for (Index head = 0; reached < n; ++head) {
    if (head == reached) {
      if (components == 1 && first != nullptr) *first = reached;
      if (++components == most) return most;
      ++reached;
    }
    for (Index k = reached; k < n; ++k) {
      const Index a = std::max(queue[head], queue[k]);
      const Index b = std::min(queue[head], queue[k]);
      if (weight(a, b) > 0.0) std::swap(queue[k], queue[reached++]);
    }
  }
  return components;
}

template <class Weight>
bool is_connected(Index n, std::vector<Index>& queue, Weight&& weight) {
  return count_graph_components(n, queue, weight, 2) == 1;
}

// Entries [0, rows) of kColumnBlock columns of a matrix from the first one on, widened, as rows
// that are `room` apart; columns behind the matrix are left out.
template <class Scalar>
void widen_columns(const MatrixView<Scalar>& matrix, Index first, Index rows, Index room,
                   double* out) {
  const Index down = matrix.outerStride();
  const Index right = matrix.innerStride();
  const Scalar* data = matrix.data() + first * right;
  const Index columns = std::min(kColumnBlock, matrix.cols() - first);
  Index j = 0;
  if (right == 1 && columns == kColumnBlock) {
    for (; j + kPackWidth <= rows; j += kPackWidth) {
      for (Index c = 0; c < kColumnBlock; c += kPackWidth) {
        Lanes tile[kPackWidth];
        for (Index k = 0; k < kPackWidth; ++k) tile[k] = load(data + (j + k) * down + c);
        transpose_lanes(tile);
        for (Index k = 0; k < kPackWidth; ++k) store(out + (c + k) * room + j, tile[k]);
      }
    }
  }
  for (; j < rows; ++j) {
    for (Index c = 0; c < columns; ++c)
      out[c * room + j] = static_cast<double>(data[j * down + c * right]);
  }
}

// Calls visit(i, w) with the weights w[j] = scale·W_ij, j < i, of every row of one matrix and
// writes their sums to workspace.degree. Returns the smallest weight, or 0 where none is below it.
template <class Scalar, class Visit>
double read_scaled_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                           double scale, GraphRows& workspace, Visit&& visit) {
  const Index n = attention.rows();
  const bool causal = is_causal(attention);
  const Index room = (n + kPackWidth - 1) / kPackWidth * kPackWidth;
  workspace.row.resize((causal ? 1 : 1 + kColumnBlock) * room);
  workspace.degree.assign(n, 0.0);
  double* forward = workspace.row.data();
  double* block = forward + room;  // columns i of the matrix, as rows
  double* degree = workspace.degree.data();
  Lanes smallest{};
  for (Index i = 0; i < n; ++i) {
    widen_row(attention, i, i, forward);
    if (!causal && i % kColumnBlock == 0) {
      widen_columns(attention, i, std::min(n, i + kColumnBlock), room, block);
    }
    const double* backward = block + i % kColumnBlock * room;
    double sum = 0.0;
    const auto combine = [&](auto&& weight) {
      Lanes sums{};
      Index j = 0;
      for (; j + kPackWidth <= i; j += kPackWidth) {
        const Lanes w =
            weight(scale * load(forward + j), causal ? Lanes{} : scale * load(backward + j));
        store(forward + j, w);
        smallest = smaller(smallest, w);
        sums += w;
        store(degree + j, load(degree + j) + w);
      }
      sum = sum_of_lanes(sums);
      for (; j < i; ++j) {
        forward[j] = weight(scale * forward[j], causal ? 0.0 : scale * backward[j]);
        smallest[0] = std::min(smallest[0], forward[j]);
        sum += forward[j];
        degree[j] += forward[j];
      }
    };
    // Of numbers or of lanes.
    if (options.threshold) {
      const double threshold = *options.threshold;
      combine([=]<class Weight>(Weight a, Weight b) {
        const Weight none{}, edge = none + 1.0;
        return (a > b ? a : b) >= threshold ? edge : none;
      });
    } else if (options.symmetrize == Symmetrize::mean) {
      combine([](auto a, auto b) { return 0.5 * (a + b); });
    } else if (options.symmetrize == Symmetrize::max) {
      combine([](auto a, auto b) { return a > b ? a : b; });
    } else {
      combine([](auto a, auto b) { return a < b ? a : b; });
    }
    degree[i] = sum;
    visit(i, forward);
  }
  double least = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) least = std::min(least, smallest[lane]);
  return least;
}

// Squares and products of weights below or above these leave float64's range, or lose digits there.
inline constexpr double kSmallestDegree = 1e-100;
inline constexpr double kLargestDegree = 1e100;

// Calls visit(i, w) with the weights w[j] = s·W_ij, j < i, of every row of one matrix and writes
// the degrees, times s, to workspace.degree. The power of two s, in workspace.scale, is 1 unless
// squares of the weights would leave float64's range: then the rows are visited a second time.
// Returns whether all weights are >= 0.
template <class Scalar, class Visit>
bool read_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                  GraphRows& workspace, Visit&& visit) {
  workspace.scale = 1.0;
  double least = read_scaled_weights(attention, options, 1.0, workspace, visit);
  double largest = -least;
  for (const double degree : workspace.degree) largest = std::max(largest, std::abs(degree));
  if (largest != 0.0 && !(largest > kSmallestDegree && largest < kLargestDegree)) {
    workspace.scale = unit_power(largest);
    least = read_scaled_weights(attention, options, workspace.scale, workspace, visit);
  }
  return least >= 0.0;
}

}  // namespace attnscope
