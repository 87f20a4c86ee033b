// SPDX-License-Identifier: MIT
#pragma once

#include <numeric>
#include <vector>

#include "kernels/graphs/laplacian.h"
#include "reader.h"

// The graph of a head, formed the slow way.
namespace attnscope::fuzz {

inline GraphOptions read_options(Bytes& bytes) {
  GraphOptions options;
  const Symmetrize rules[] = {Symmetrize::mean, Symmetrize::max, Symmetrize::min};
  options.symmetrize = rules[bytes.byte() % 3];
  options.normalized = bytes.flag();
  if (bytes.byte() % 4 == 0) options.threshold = 1e-6 + (1.0 - 2e-6) * bytes.unit();
  return options;
}

template <class Scalar>
Eigen::MatrixXd weights_of(const Map<Scalar>& map, const GraphOptions& options) {
  const Index n = map.size();
  Eigen::MatrixXd weights = Eigen::MatrixXd::Zero(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      if (i == j) continue;
      const double a = map(i, j);
      const double b = map(j, i);
      if (options.threshold) {
        weights(i, j) = std::max(a, b) >= *options.threshold ? 1.0 : 0.0;
      } else if (options.symmetrize == Symmetrize::mean) {
        weights(i, j) = (a + b) / 2.0;
      } else {
        weights(i, j) = options.symmetrize == Symmetrize::max ? std::max(a, b) : std::min(a, b);
      }
    }
  }
  return weights;
}

inline Eigen::MatrixXd laplacian_of(const Eigen::MatrixXd& weights, bool normalized) {
  const Index n = weights.rows();
  const Eigen::VectorXd degree = weights.rowwise().sum();
  Eigen::MatrixXd laplacian = -weights;
  if (!normalized) {
    laplacian.diagonal() = degree;
    return laplacian;
  }
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      if (weights(i, j) != 0.0)
        laplacian(i, j) = -weights(i, j) / std::sqrt(degree(i)) / std::sqrt(degree(j));
    }
    laplacian(i, i) = degree(i) > 0.0 ? 1.0 : 0.0;
  }
  return laplacian;
}

inline Index components_of(const Eigen::MatrixXd& weights) {
  std::vector<Index> parent(static_cast<std::size_t>(weights.rows()));
  std::iota(parent.begin(), parent.end(), Index{0});
  const auto root = [&](Index v) {
    while (parent[v] != v) v = parent[v];
    return v;
  };
  Index count = weights.rows();
  for (Index i = 0; i < weights.rows(); ++i) {
    for (Index j = 0; j < i; ++j) {
      if (!(weights(i, j) > 0.0) || root(i) == root(j)) continue;
      parent[root(i)] = root(j);
      --count;
    }
  }
  return count;
}

}  // namespace attnscope::fuzz
