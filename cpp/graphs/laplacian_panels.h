// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>

#include "graphs/graph_rows.h"
#include "linalg/panels.h"

// The Laplacian of one matrix's graph in panels.
namespace attnscope {

// The number of components of a graph whose weights and degrees were just read: 0 where a weight is
// negative.
template <class Weight>
Index components_of(bool graph, Index n, GraphRows& rows, Weight&& weight) {
  return graph ? count_graph_components(n, rows.queue, weight) : 0;
}

// Puts −w of kPackWidth rows of weights from row `first` on, those at band + r·room, to both
// triangles of the panels, the diagonal being 0. Entries at and behind a row's own are 0.
inline void put_band(const double* band, Index room, Index first, double* panels) {
  const Index s = first / kPanel;
  const Index begin = s * kPanel;  // of the diagonal block
  double* columns = panels + panel_offset(s) + (first - begin);
  for (Index j = 0; j <= first; j += kPackWidth) {
    Lanes tile[kPackWidth];
    for (Index r = 0; r < kPackWidth; ++r) tile[r] = -*lanes_at(band + r * room + j);
    if (j >= begin && j < first) {
      double* of_block = panels + panel_offset(s) + first * kPanel + (j - begin);
      for (Index r = 0; r < kPackWidth; ++r) *lanes_at(of_block + r * kPanel) = tile[r];
    }
    Lanes turned[kPackWidth];
    std::copy(tile, tile + kPackWidth, turned);
    transpose_lanes(turned);
    for (Index r = 0; r < kPackWidth; ++r) {
      *lanes_at(columns + (j + r) * kPanel) = j < first ? turned[r] : turned[r] + tile[r];
    }
  }
}

// The Laplacian of one matrix, times workspace.scale, in panels, as panel_tridiagonalize takes it;
// returns components_of it. Without any the panels are not a Laplacian.
template <class Scalar>
Index read_laplacian(const MatrixView<Scalar>& matrix, const GraphOptions& options, double* panels,
                     GraphRows& workspace) {
  const Index n = matrix.rows();
  const Index room = padded_row(n - 1);
  double* band = workspace.band.resize(kPackWidth * room);
  const auto place = [=](Index i) { return band + i % kPackWidth * room; };
  const bool graph = read_weights(matrix, options, workspace, place, [&](Index i, const double*) {
    const Index part = i % kPackWidth;
    if (part + 1 < kPackWidth && i + 1 < n) return;
    for (Index r = part + 1; r < kPackWidth; ++r)
      std::fill(band + r * room, band + r * room + padded_row(i), 0.0);
    put_band(band, room, i - part, panels);
  });
  // What lies behind the matrix in the last panel.
  const Index last = panels_of(n) - 1;
  double* panel = panels + panel_offset(last);
  for (Index i = 0; i < (last + 1) * kPanel; ++i) {
    const Index from = i < room ? room - last * kPanel : 0;
    std::fill(panel + i * kPanel + from, panel + (i + 1) * kPanel, 0.0);
  }
  const Index components = components_of(
      graph, n, workspace, [&](Index i, Index j) { return -panels[panel_entry(j, i)]; });
  const double* degree = workspace.degree;
  for (Index i = 0; i < n; ++i) {
    const double d = degree[i];
    panels[panel_entry(i, i)] = options.normalized && d > 0.0 ? 1.0 : d;
  }
  if (components == 0 || !options.normalized) return components;
  double* scales = band;  // of rows and columns
  for (Index i = 0; i < n; ++i) scales[i] = degree[i] > 0.0 ? 1.0 / std::sqrt(degree[i]) : 0.0;
  for (Index s = 0; s < panels_of(n); ++s) {
    const Index first = s * kPanel;
    const Index end = std::min(n, first + kPanel);
    double* row = panels + panel_offset(s);
    for (Index i = 0; i < end; ++i, row += kPanel) {
      for (Index j = first; j < end; ++j) {
        if (i != j) row[j - first] *= scales[i] * scales[j];
      }
    }
  }
  return components;
}

}  // namespace attnscope
