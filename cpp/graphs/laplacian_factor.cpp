// SPDX-License-Identifier: MIT
#include "graphs/laplacian_factor.h"

#include <algorithm>

#include "linalg/panel_cholesky.h"

namespace attnscope {
namespace {

constexpr Index kWidth = PanelShape<float>::kWidth;

float* floats(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<float*>(buffer.resize((size + 1) / 2));
}

}  // namespace

Index order_for_elimination(const SimpleLaplacian& laplacian, std::vector<Index>& order) {
  const Index m = laplacian.order();
  // Joining more neighbours two by two costs as much as the row of the dense factor that is saved.
  const double most_neighbours = static_cast<double>(m) / 12.0;
  std::vector<Index> candidates;
  for (Index i = 0; i < m; ++i) {
    if (laplacian.degree(i) > 0.0 && laplacian.degree(i) <= most_neighbours)
      candidates.push_back(i);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [&](Index i, Index j) { return laplacian.degree(i) < laplacian.degree(j); });
  std::vector<Index> chosen;
  std::vector<char> touched(static_cast<std::size_t>(m), 0);
  for (const Index i : candidates) {
    if (touched[i] != 0) continue;
    chosen.push_back(i);
    laplacian.for_each_neighbour(i, [&](Index j) { touched[j] = 1; });
  }
  // Whole panels are left.
  const Index core = (m - static_cast<Index>(chosen.size()) + kWidth - 1) / kWidth * kWidth;
  order.clear();
  if (core >= m) return m;
  chosen.resize(static_cast<std::size_t>(m - core));
  std::vector<char> is_chosen(static_cast<std::size_t>(m), 0);
  for (const Index i : chosen) is_chosen[i] = 1;
  for (Index i = 0; i < m; ++i) {
    if (is_chosen[i] == 0) order.push_back(i);
  }
  order.insert(order.end(), chosen.begin(), chosen.end());
  return core;
}

LaplacianFactor::LaplacianFactor(const SimpleLaplacian& laplacian, Index core,
                                 LaplacianFactorWorkspace& workspace)
    : laplacian_(laplacian), workspace_(workspace), core_(core) {
  workspace.neighbours.clear();
  workspace.starts.assign(1, 0);
  for (Index i = core; i < laplacian.order(); ++i) {
    laplacian.for_each_neighbour(i, [&](Index j) { workspace.neighbours.push_back(j); });
    workspace.starts.push_back(static_cast<Index>(workspace.neighbours.size()));
  }
}

Index LaplacianFactor::padded() const { return panels_of<float>(laplacian_.order()) * kWidth; }

bool LaplacianFactor::factorize(const float* lifted, double lift, double sigma) {
  dense_ = sigma == 0.0 ? core_ : laplacian_.order();
  const Index count = panels_of<float>(dense_);
  float* panels = floats(workspace_.panels, panel_offset<float>(count));
  laplacian_.fill_panels<float>(dense_, lifted, lift, sigma, panels);
  for (Index i = dense_; i < laplacian_.order(); ++i) {
    const Index* first = workspace_.neighbours.data() + workspace_.starts[i - dense_];
    const Index* end = workspace_.neighbours.data() + workspace_.starts[i - dense_ + 1];
    const float weight = 1.0f / static_cast<float>(end - first);
    for (const Index* column = first; column < end; ++column) {
      float* entries = panels + panel_entry<float>(0, *column);
      for (const Index* row = first; row <= column; ++row) entries[*row * kWidth] -= weight;
    }
  }
  return panel_factorize(panels, count, floats(workspace_.inverses, panel_inverses<float>(dense_)));
}

template <Index kCount>
void LaplacianFactor::solve_together(float* const (&vectors)[kCount]) const {
  const Index* neighbours = workspace_.neighbours.data();
  const Index* starts = workspace_.starts.data();
  const Index order = laplacian_.order();
  for (Index i = dense_; i < order; ++i) {
    const Index first = starts[i - dense_], end = starts[i - dense_ + 1];
    const float weight = 1.0f / static_cast<float>(end - first);
    for (Index c = 0; c < kCount; ++c) {
      const float part = weight * vectors[c][i];
      for (Index k = first; k < end; ++k) vectors[c][neighbours[k]] += part;
    }
  }
  panel_solve<kCount, float>(floats(workspace_.panels, 0), panels_of<float>(dense_),
                             floats(workspace_.inverses, 0), vectors);
  for (Index i = dense_; i < order; ++i) {
    const Index first = starts[i - dense_], end = starts[i - dense_ + 1];
    const float weight = 1.0f / static_cast<float>(end - first);
    for (Index c = 0; c < kCount; ++c) {
      float sum = vectors[c][i];
      for (Index k = first; k < end; ++k) sum += vectors[c][neighbours[k]];
      vectors[c][i] = weight * sum;
    }
  }
}

void LaplacianFactor::solve(float* x) const { solve_together<1>({x}); }
void LaplacianFactor::solve(float* x, float* y) const { solve_together<2>({x, y}); }

}  // namespace attnscope
