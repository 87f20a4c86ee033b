// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "homology/spanning_tree.h"
#include "matrix/matrix_view.h"

// Into how many pieces a cloud of points falls, from its minimum spanning tree.
namespace attnscope {

// Scratch that a thread reuses over a batch.
struct FragmentationWorkspace {
  SpanningTree tree;
  std::vector<Index> members;
  std::vector<double> square;
  std::vector<double> pairs;
  std::vector<Index> parent;
  std::vector<Index> sizes;
};

// Mean length of the finite bars of H0 over the median distance of pairs, of the points that
// `member` marks (all where it is null); `distances` is symmetric, not negative and not NaN. 1
// where all pairs are equally far apart, lower the more clustered; NaN for fewer than two points,
// where the median is 0 or infinite, and without a finite bar. What a subset gives is what its own
// matrix gives, bit for bit. Cost O(n²).
template <class Scalar>
double fragmentation(const MatrixView<Scalar>& distances, const bool* member,
                     FragmentationWorkspace& workspace);

// What the graph of all pairs not farther apart than a scale consists of.
struct Components {
  std::int64_t components;
  std::int64_t clusters;  // of at least min_size points
  std::int64_t singletons;
  double largest;  // share of all points
};

// The components at every one of `count` ascending scales. Cost O(n²).
template <class Scalar>
void cloud_components(const MatrixView<Scalar>& distances, const double* scales, Index count,
                      Index min_size, Components* out, FragmentationWorkspace& workspace);

}  // namespace attnscope
