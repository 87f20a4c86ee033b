// SPDX-License-Identifier: MIT
#include "kernels/spectra/singular_values.h"

#include <algorithm>

#include "linalg/bidiagonal.h"
#include "matrix/square_factor.h"
#include "matrix/widen.h"
#include "simd/lanes.h"

namespace attnscope {
namespace {

// Up to this size a pack of matrices stays in the second-level cache; beyond, one matrix does.
constexpr Index kLargestPacked = 128;

// Copies up to kPackWidth matrices side by side and returns the scale of each; lanes without a
// matrix are 0.
template <class Scalar>
void interleave(std::span<const MatrixView<Scalar>> matrices, double* pack, double* scales,
                AlignedBuffer& rows) {
  const Index n = matrices.front().rows();
  const Index row = bidiagonal_pack_row(n);
  double* lines = rows.resize(kPackWidth * n);
  Lanes largest{};
  for (Index i = 0; i < n; ++i) {
    interleave_row(matrices, i, n, lines, pack + i * row);
    const Lanes* entries = reinterpret_cast<const Lanes*>(pack + i * row);
    for (Index j = 0; j < n; ++j) largest = larger(largest, magnitude(entries[j]));
  }
  Lanes factor;
  for (Index lane = 0; lane < kPackWidth; ++lane) {
    scales[lane] = safe_scale(largest[lane]);
    factor[lane] = scales[lane];
  }
  if (!any(factor != 1.0)) return;
  for (Index i = 0; i < n; ++i) {
    Lanes* entries = reinterpret_cast<Lanes*>(pack + i * row);
    for (Index j = 0; j < n; ++j) entries[j] *= factor;
  }
}

// Of rectangles of one size, by their square factors.
template <class Scalar>
void of_rectangles(std::span<const MatrixView<Scalar>> matrices, std::span<double* const> out,
                   SingularValuesWorkspace& workspace) {
  const Index rows = matrices.front().rows();
  const Index columns = matrices.front().cols();
  const Index r = std::min(rows, columns);
  double* rectangle = workspace.rectangle.resize(rows * columns);
  double* factors = workspace.factors.resize(static_cast<Index>(matrices.size()) * r * r);
  std::vector<double> scales;
  std::vector<MatrixView<double>> squares;
  for (const MatrixView<Scalar>& matrix : matrices) {
    double* factor = factors + static_cast<Index>(squares.size()) * r * r;
    scales.push_back(widen(matrix, rectangle, columns));
    square_factor(rectangle, rows, columns, factor);
    squares.push_back(matrix_view(static_cast<const double*>(factor), r, r, Index{1}));
  }
  singular_values(std::span<const MatrixView<double>>(squares), out, workspace);
  for (std::size_t k = 0; k < scales.size(); ++k) {
    for (Index i = 0; i < r && scales[k] != 1.0; ++i) out[k][i] /= scales[k];
  }
}

}  // namespace

Index singular_values_width() { return dqds_width(); }

template <class Scalar>
void singular_values(std::span<const MatrixView<Scalar>> matrices, std::span<double* const> out,
                     SingularValuesWorkspace& workspace) {
  if (matrices.front().rows() != matrices.front().cols()) {
    of_rectangles(matrices, out, workspace);
    return;
  }
  const Index n = matrices.front().rows();
  const Index width = dqds_width();
  double* diagonal = workspace.bidiagonals.resize(2 * n * width);
  double* superdiagonal = diagonal + n * width;
  std::fill(diagonal, diagonal + 2 * n * width, 0.0);
  alignas(64) double scales[64];
  const auto count = static_cast<Index>(matrices.size());
  if (n <= kLargestPacked) {
    double* pack = workspace.matrices.resize(n * bidiagonal_pack_row(n));
    for (Index first = 0; first < count; first += kPackWidth) {
      const auto part = matrices.subspan(first, std::min(kPackWidth, count - first));
      interleave(part, pack, scales + first, workspace.rows);
      bidiagonalize_pack(pack, n, diagonal + first, superdiagonal + first, width,
                         workspace.vectors);
    }
  } else {
    const Index row = bidiagonal_row(n);
    double* matrix = workspace.matrices.resize(n * row);
    for (Index lane = 0; lane < count; ++lane) {
      for (Index i = 0; i < n; ++i) std::fill(matrix + i * row + n, matrix + (i + 1) * row, 0.0);
      scales[lane] = widen(matrices[lane], matrix, row);
      bidiagonalize(matrix, n, diagonal + lane, superdiagonal + lane, width, workspace.vectors);
    }
  }
  bidiagonal_singular_values(diagonal, superdiagonal, n, out, workspace.dqds);
  for (Index lane = 0; lane < count; ++lane) {
    if (scales[lane] == 1.0) continue;
    double* values = out[lane];
    for (Index i = 0; i < n; ++i) values[i] /= scales[lane];
  }
}

ATTNSCOPE_COMPILE(singular_values);

}  // namespace attnscope
