// SPDX-License-Identifier: MIT
#include "random_matrices/row_spectrum.h"

#include "linalg/gram.h"
#include "linalg/panel_tridiagonal.h"
#include "random_matrices/standard_rows.h"

namespace attnscope {
namespace {

// Up to this size a pack stays near the second-level cache; beyond, one matrix at a time does.
constexpr Index kLargestPacked = 256;

// XXᵀ of up to kPackWidth matrices, tridiagonal in the lanes from `diagonal` and `beside` on.
template <class Scalar>
void reduce_pack(std::span<const MatrixView<Scalar>> part, bool causal, double* diagonal,
                 double* beside, Index stride, Index* varying_rows,
                 RowSpectrumWorkspace& workspace) {
  const Index n = part.front().rows();
  // Whole rows are not a power of two apart, or they would fall on the same cache sets.
  const Index room = n + (n % 2 == 0 ? 5 : 4);
  const auto place = [=](Index i) { return causal ? padded_triangle_row(i) : i * room; };
  Lanes* rows = lane_buffer(workspace.rows, place(n));
  Lanes* gram = lane_buffer(workspace.gram, triangle_row(n));
  const Lanes varying =
      standardize_pack(part, causal, place, rows, workspace.lines.resize(kPackWidth * n));
  for (std::size_t lane = 0; lane < part.size(); ++lane) {
    varying_rows[lane] = static_cast<Index>(varying[static_cast<Index>(lane)]);
  }
  packed_gram(
      n, [&](Index i) { return rows + place(i); },
      [=](Index i) { return causal ? std::min(n, i + 1) : n; }, gram);
  tridiagonalize(gram, n, lanes_at(diagonal), lanes_at(beside), stride / kPackWidth,
                 lane_buffer(workspace.vectors, 4 * n));
}

// The same of one matrix; returns how many rows vary.
template <class Scalar>
Index reduce_one(const MatrixView<Scalar>& matrix, bool causal, double* diagonal, double* beside,
                 Index stride, RowSpectrumWorkspace& workspace) {
  const Index n = matrix.rows();
  double* rows = workspace.rows.resize(n * n);
  Index varying_rows = 0;
  for (Index i = 0; i < n; ++i) {
    double* row = rows + i * n;
    const Index count = causal ? i + 1 : n;
    widen_row(matrix, i, count, row);
    const bool varies = standardize_row(row, count);
    std::fill(row + (varies ? count : 0), row + n, 0.0);
    varying_rows += varies ? 1 : 0;
  }
  double* gram = workspace.gram.resize(panel_offset(panels_of(n)));
  panel_gram(rows, n, n, causal, gram, workspace.lines);
  panel_tridiagonalize(gram, n, diagonal, beside, stride, workspace.vectors);
  return varying_rows;
}

}  // namespace

template <class Scalar>
void row_tridiagonals(std::span<const MatrixView<Scalar>> matrices, bool causal,
                      RowSpectrumWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const auto count = static_cast<Index>(matrices.size());
  const Index width = dqds_width();
  double* diagonal = workspace.tridiagonals.resize(2 * n * width);
  double* beside = diagonal + n * width;
  std::fill(diagonal, diagonal + 2 * n * width, 0.0);
  workspace.varying_rows.resize(width);
  Index* varying_rows = workspace.varying_rows.data();
  if (n <= kLargestPacked) {
    for (Index first = 0; first < count; first += kPackWidth) {
      reduce_pack(matrices.subspan(first, std::min(kPackWidth, count - first)), causal,
                  diagonal + first, beside + first, width, varying_rows + first, workspace);
    }
  } else {
    for (Index lane = 0; lane < count; ++lane) {
      varying_rows[lane] =
          reduce_one(matrices[lane], causal, diagonal + lane, beside + lane, width, workspace);
    }
  }
  const double scale = 1.0 / static_cast<double>(n);
  for (Index i = 0; i < 2 * n * width; ++i) diagonal[i] *= scale;
  workspace.errors.assign(count, 0.0);
  for (Index lane = 0; lane < count; ++lane) {
    // The largest row sum, which no eigenvalue exceeds.
    double before = 0.0;
    for (Index i = 0; i < n; ++i) {
      const double after = i + 1 < n ? std::abs(beside[i * width + lane]) : 0.0;
      const double sum = std::abs(diagonal[i * width + lane]) + before + after;
      workspace.errors[lane] = std::max(workspace.errors[lane], kRowSpectrumError * sum);
      before = after;
    }
  }
}

void row_spectra(Index n, Index count, RowSpectrumWorkspace& workspace) {
  const double* diagonal = workspace.tridiagonals.resize(2 * n * dqds_width());
  workspace.values.resize(count * n);
  double* values = workspace.values.data();
  tridiagonal_eigenvalues(diagonal, diagonal + n * dqds_width(), n, count, values, workspace.dqds);
  for (Index lane = 0; lane < count; ++lane)
    std::reverse(values + lane * n, values + (lane + 1) * n);
}

ATTNSCOPE_COMPILE(row_tridiagonals);

}  // namespace attnscope
