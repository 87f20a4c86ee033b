// SPDX-License-Identifier: MIT
#include "random_matrices/float_row_spectrum.h"

#include <algorithm>
#include <cmath>

#include "linalg/bidiagonal.h"
#include "linalg/float_packs.h"
#include "random_matrices/standard_rows.h"

namespace attnscope {
namespace {

// Measured with eight maps a call: packs of XXᵀ in float64 take less time up to the first size, and
// single ones, which leave fewer numbers to read from memory, no more beyond the second.
constexpr Index kLargestByPacks = 256;
constexpr Index kLargestInFloat32 = 1024;

// X of one matrix made bidiagonal in float32; returns how many rows vary.
template <class Scalar>
Index reduce_one(const MatrixView<Scalar>& matrix, bool causal, double* diagonal,
                 double* superdiagonal, FloatRowSpectrumWorkspace& workspace) {
  const Index n = matrix.rows();
  FloatPanels panels(n, workspace.matrix);
  double* row = workspace.row.resize(n);
  Index varying_rows = 0;
  for (Index i = 0; i < n; ++i) {
    const Index count = causal ? i + 1 : n;
    widen_row(matrix, i, count, row);
    const bool varies = standardize_row(row, count);
    std::fill(row + (varies ? count : 0), row + n, 0.0);
    varying_rows += varies ? 1 : 0;
    panels.set_row(i, row, 1.0);
  }
  panels.bidiagonalize(diagonal, superdiagonal, dqds_width(), workspace.vectors);
  return varying_rows;
}

}  // namespace

bool is_faster_in_float32(Index n) { return n > kLargestByPacks && n <= kLargestInFloat32; }

template <class Scalar>
void float_row_spectra(std::span<const MatrixView<Scalar>> matrices, bool causal,
                       FloatRowSpectrumWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const auto count = static_cast<Index>(matrices.size());
  const Index width = dqds_width();
  double* groups = workspace.bidiagonals.resize(float_groups_size(n));
  std::fill(groups, groups + float_groups_size(n), 0.0);
  workspace.varying_rows.resize(count);
  for (Index k = 0; k < count; ++k) {
    double* diagonal = groups + k / width * group_size(n) + k % width;
    workspace.varying_rows[k] =
        reduce_one(matrices[k], causal, diagonal, diagonal + n * width, workspace);
  }
  workspace.values.resize(count * n);
  double* values = workspace.values.data();
  std::vector<double*> out(count);
  for (Index k = 0; k < count; ++k) out[k] = values + k * n;
  float_bidiagonal_singular_values(groups, n, std::span<double* const>(out), workspace.dqds);
  for (Index k = 0; k < count; ++k) {
    std::reverse(out[k], out[k] + n);
    for (Index i = 0; i < n; ++i) out[k][i] *= out[k][i] / static_cast<double>(n);
  }
}

RootError float_row_error(Index n, double largest) {
  return {3e-7 * std::sqrt(largest), 1.5e-7 * std::sqrt(static_cast<double>(n))};
}

ATTNSCOPE_COMPILE(float_row_spectra);

}  // namespace attnscope
