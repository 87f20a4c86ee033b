// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "graphs/graph_options.h"
#include "linalg/lanczos/shifted_lanczos.h"
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

// Where a row ends whose last vector holds entry i.
inline Index padded_row(Index i) { return (i / kPackWidth + 1) * kPackWidth; }

// Widens row i of a matrix in whole vectors, `count` numbers of which those behind entry i may be
// anything: numbers that are stored one by one cannot be loaded as a vector at once.
template <class Scalar>
void widen_vectors(const MatrixView<Scalar>& matrix, Index i, Index count, double* out) {
  if (matrix.innerStride() != 1 || count > matrix.cols()) {
    widen_row(matrix, i, i, out);
    return;
  }
  const Scalar* row = matrix.data() + i * matrix.outerStride();
  for (Index j = 0; j < count; j += kPackWidth) store(out + j, load(row + j));
}

// Calls visit(i, w) with the weights w[j] = scale·W_ij, j < i, of every row of one matrix, which
// are at place(i) and 0 from entry i to padded_row(i), and writes their sums to workspace.degree.
// Returns the smallest weight, or 0 where none is below it.
template <class Scalar, class Place, class Visit>
double read_scaled_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                           double scale, GraphRows& workspace, Place&& place, Visit&& visit) {
  const Index n = attention.rows();
  const bool causal = is_causal(attention);
  const Index room = padded_row(n);
  // Columns i of the matrix, as rows.
  double* block = workspace.columns.resize(causal ? 0 : kColumnBlock * room);
  double* degree = workspace.degrees.resize(room);
  workspace.degree = degree;
  std::fill(degree, degree + room, 0.0);
  LaneMask places;
  for (Index lane = 0; lane < kPackWidth; ++lane) places[lane] = lane;
  Lanes smallest{};
  for (Index i = 0; i < n; ++i) {
    double* forward = place(i);
    widen_vectors(attention, i, padded_row(i), forward);
    if (!causal && i % kColumnBlock == 0) {
      widen_columns(attention, i, std::min(n, i + kColumnBlock), room, block);
    }
    const double* backward = causal ? nullptr : block + i % kColumnBlock * room;
    const Index last = padded_row(i) - kPackWidth;
    const LaneMask inside = places < i - last;
    const auto combine = [&](auto&& weight) {
      Lanes sums{};
      const auto take = [&](Index j, Lanes w) {
        store(forward + j, w);
        smallest = smaller(smallest, w);
        sums += w;
        store(degree + j, load(degree + j) + w);
      };
      const auto at = [&](Index j) {
        return weight(scale * load(forward + j), causal ? Lanes{} : scale * load(backward + j));
      };
      for (Index j = 0; j < last; j += kPackWidth) take(j, at(j));
      // What is behind the row may be anything.
      take(last, inside ? at(last) : Lanes{});
      degree[i] = sum_of_lanes(sums);
    };
    if (options.threshold) {
      const double threshold = *options.threshold;
      combine(
          [=](Lanes a, Lanes b) { return larger(a, b) >= threshold ? broadcast(1.0) : Lanes{}; });
    } else if (options.symmetrize == Symmetrize::mean) {
      combine([](Lanes a, Lanes b) { return 0.5 * (a + b); });
    } else if (options.symmetrize == Symmetrize::max) {
      combine([](Lanes a, Lanes b) { return larger(a, b); });
    } else {
      combine([](Lanes a, Lanes b) { return smaller(a, b); });
    }
    visit(i, static_cast<const double*>(forward));
  }
  double least = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) least = std::min(least, smallest[lane]);
  return least;
}

// Squares and products of weights below or above these leave float64's range, or lose digits there.
inline constexpr double kSmallestDegree = 1e-100;
inline constexpr double kLargestDegree = 1e100;

// Calls visit(i, w) with the weights w[j] = s·W_ij, j < i, of every row of one matrix, which are
// zeros from entry i to padded_row(i) and lie at place(i), and writes the degrees, times s, to
// workspace.degree, zeros behind them. The power of two s, in workspace.scale, is 1 unless
// squares of the weights would leave float64's range: then the rows are visited a second time.
// Returns whether all weights are >= 0.
template <class Scalar, class Place, class Visit>
bool read_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                  GraphRows& workspace, Place&& place, Visit&& visit) {
  workspace.scale = 1.0;
  double least = read_scaled_weights(attention, options, 1.0, workspace, place, visit);
  double largest = -least;
  for (Index i = 0; i < attention.rows(); ++i)
    largest = std::max(largest, std::abs(workspace.degree[i]));
  if (largest != 0.0 && !(largest > kSmallestDegree && largest < kLargestDegree)) {
    workspace.scale = unit_power(largest);
    least = read_scaled_weights(attention, options, workspace.scale, workspace, place, visit);
  }
  return least >= 0.0;
}

// The same with one place for all rows.
template <class Scalar, class Visit>
bool read_weights(const MatrixView<Scalar>& attention, const GraphOptions& options,
                  GraphRows& workspace, Visit&& visit) {
  double* row = workspace.row.resize(padded_row(attention.rows()));
  return read_weights(attention, options, workspace, [=](Index) { return row; }, visit);
}

}  // namespace attnscope
