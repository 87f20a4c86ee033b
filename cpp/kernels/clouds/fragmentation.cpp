// SPDX-License-Identifier: MIT
#include "kernels/clouds/fragmentation.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace attnscope {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  const double below = *std::max_element(values.begin(), middle);
  return below + 0.5 * (*middle - below);
}

}  // namespace

template <class Scalar>
double fragmentation(const MatrixView<Scalar>& distances, const bool* member,
                     FragmentationWorkspace& workspace) {
  std::vector<Index>& members = workspace.members;
  members.clear();
  for (Index i = 0; i < distances.rows(); ++i) {
    if (member == nullptr || member[i]) members.push_back(i);
  }
  const auto n = static_cast<Index>(members.size());
  if (n < 2) return kNaN;
  const auto size = static_cast<std::size_t>(n);
  workspace.square.resize(size * size);
  workspace.pairs.clear();
  double* square = workspace.square.data();
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) {
      const double a = static_cast<double>(distances(members[i], members[j]));
      const double b = static_cast<double>(distances(members[j], members[i]));
      const double distance = a > b ? a : b;
      square[i * n + j] = square[j * n + i] = distance;
      workspace.pairs.push_back(distance);
    }
    square[i * n + i] = 0.0;
  }
  const double middle = median(workspace.pairs);
  if (!(middle > 0.0 && middle < kInfinity)) return kNaN;
  SpanningTree& tree = workspace.tree;
  tree.assign(matrix_view(square, n, n, 1), Symmetrize::max, Metric::distance);
  double sum = 0.0;
  double bars = 0.0;
  for (std::uint32_t k = 0; k < tree.edges().size(); ++k) {
    const double length = tree.dissimilarity(k);
    if (!(length > 0.0 && length < kInfinity)) continue;
    sum += length / middle;  // exactly 1 where all distances are one
    bars += 1.0;
  }
  return sum / bars;
}

template <class Scalar>
void cloud_components(const MatrixView<Scalar>& distances, const double* scales, Index count,
                      Index min_size, Components* out, FragmentationWorkspace& workspace) {
  const Index n = distances.rows();
  std::vector<Index>& parent = workspace.parent;
  std::vector<Index>& sizes = workspace.sizes;
  parent.resize(n);
  std::iota(parent.begin(), parent.end(), Index{0});
  sizes.assign(n, 1);
  const auto root = [&](Index v) {
    while (parent[v] != v) v = parent[v] = parent[parent[v]];
    return v;
  };
  SpanningTree& tree = workspace.tree;
  if (n > 1) tree.assign(distances, Symmetrize::max, Metric::distance);
  const std::uint32_t edges = n > 1 ? static_cast<std::uint32_t>(n - 1) : 0;
  Components now{n, min_size <= 1 ? n : 0, n, 0.0};
  Index largest = 1;
  std::uint32_t k = 0;
  for (Index s = 0; s < count; ++s) {
    for (; k < edges && tree.dissimilarity(k) <= scales[s]; ++k) {
      const Index a = root(edge_row(tree.edges()[k]));
      const Index b = root(edge_column(tree.edges()[k]));
      for (const Index part : {a, b}) {
        now.clusters -= sizes[part] >= min_size ? 1 : 0;
        now.singletons -= sizes[part] == 1 ? 1 : 0;
      }
      parent[b] = a;
      sizes[a] += sizes[b];
      now.clusters += sizes[a] >= min_size ? 1 : 0;
      largest = std::max(largest, sizes[a]);
      --now.components;
    }
    now.largest = static_cast<double>(largest) / static_cast<double>(n);
    out[s] = now;
  }
}

ATTNSCOPE_COMPILE(fragmentation);
ATTNSCOPE_COMPILE(cloud_components);

}  // namespace attnscope
