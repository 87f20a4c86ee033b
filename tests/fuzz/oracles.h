// SPDX-License-Identifier: MIT
#pragma once

#include <numeric>
#include <utility>
#include <vector>

#include "graphs/graph_options.h"
#include "reader.h"

// The graph of a head and its persistent homology, formed the slow way.
namespace attnscope::fuzz {

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

// A weight as the filtration sees it: float32 inputs compare in float32, means in float64; 1 at
// most.
template <class Scalar>
Eigen::MatrixXd filtration_weights(const Map<Scalar>& map, Symmetrize rule) {
  const Index n = map.size();
  Eigen::MatrixXd weights(n, n);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      const double a = map(i, j);
      const double b = map(j, i);
      const double w = rule == Symmetrize::mean  ? 0.5 * (a + b)
                       : rule == Symmetrize::max ? std::max(a, b)
                                                 : std::min(a, b);
      weights(i, j) = std::min(w, 1.0);
    }
  }
  return weights;
}

using Interval = std::pair<double, double>;

// The finite bars of H1 over Z/2 of the clique filtration by falling weight. Every edge carries its
// class, a set of open classes; an edge that closes a triangle with each vertex of its lune makes
// all those sums equal, and what has to vanish for that closes its youngest class everywhere at
// once.
inline std::vector<Interval> loops_by_hand(const Eigen::MatrixXd& weights) {
  const Index n = weights.rows();
  using Class = std::vector<bool>;
  std::vector<std::pair<Index, Index>> edges;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) edges.emplace_back(i, j);
  }
  std::stable_sort(edges.begin(), edges.end(), [&](const auto& a, const auto& b) {
    return weights(a.first, a.second) > weights(b.first, b.second);
  });
  std::vector<Index> parent(static_cast<std::size_t>(n));
  std::iota(parent.begin(), parent.end(), Index{0});
  const auto root = [&](Index v) {
    while (parent[v] != v) v = parent[v];
    return v;
  };
  std::vector<std::vector<Class>> classes(n, std::vector<Class>(n, Class(edges.size())));
  std::vector<std::vector<char>> joined(n, std::vector<char>(n, 0));
  std::vector<double> births;
  std::vector<Interval> bars;
  const auto add = [](Class& to, const Class& from) {
    for (std::size_t k = 0; k < to.size(); ++k) to[k] = to[k] != from[k];
  };
  for (const auto& [u, w] : edges) {
    const double now = 1.0 - weights(u, w);
    Class own(edges.size());
    std::vector<Class> vanish;
    bool first = true;
    for (Index k = 0; k < n; ++k) {
      if (!joined[u][k] || !joined[w][k]) continue;
      Class sum = classes[u][k];
      add(sum, classes[w][k]);
      if (first) {
        own = sum;
      } else {
        add(sum, own);
        vanish.push_back(sum);
      }
      first = false;
    }
    if (first) {
      if (root(u) != root(w)) {
        parent[root(u)] = root(w);
      } else {
        own[births.size()] = true;
        births.push_back(now);
      }
    }
    classes[u][w] = classes[w][u] = own;
    joined[u][w] = joined[w][u] = 1;
    for (std::size_t r = 0; r < vanish.size(); ++r) {
      const Class gone = vanish[r];
      std::size_t youngest = births.size();
      while (youngest > 0 && !gone[youngest - 1]) --youngest;
      if (youngest == 0) continue;
      --youngest;
      if (births[youngest] != now) bars.emplace_back(births[youngest], now);
      for (std::size_t q = r + 1; q < vanish.size(); ++q) {
        if (vanish[q][youngest]) add(vanish[q], gone);
      }
      for (Index a = 0; a < n; ++a) {
        for (Index b = 0; b < a; ++b) {
          if (!classes[a][b][youngest]) continue;
          add(classes[a][b], gone);
          classes[b][a] = classes[a][b];
        }
      }
    }
  }
  std::sort(bars.begin(), bars.end());
  return bars;
}

}  // namespace attnscope::fuzz
