// SPDX-License-Identifier: MIT
#include "kernels/spectra/singular_values.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "linalg/bidiagonal.h"
#include "linalg/float_packs.h"
#include "linalg/gram.h"
#include "matrix/square_factor.h"
#include "matrix/widen.h"
#include "simd/lanes.h"

namespace attnscope {
namespace {

// Up to this size a pack of matrices stays in the second-level cache; beyond, one matrix does.
constexpr Index kLargestPacked = 128;
// Up to this size a pack of matrices in float32 does.
constexpr Index kLargestFloatPack = 96;
// Up to this size, and beyond packs in float32, packs of AAᵀ in float64 take less time.
constexpr Index kLargestPackedGram = 256;
// Values up to this share of the largest are taken for 0, ten times what rounding makes of 0 at
// most: in packs for every row, and in one matrix, whose sums run in many chains, whatever the
// size.
constexpr double kNoiseOfRow = 0x1p-24;
constexpr double kNoise = 0x1p-20;

// The power of two that brings a largest entry which float32 does not square to 1.
double float_scale(double largest) {
  return largest == 0.0 || (largest > 1e-6 && largest < 1e6) ? 1.0 : unit_power(largest);
}

// Copies up to kPackWidth matrices side by side and returns the scale of each, from its largest
// entry; lanes without a matrix are 0.
template <class Scalar, class Scale>
void interleave(std::span<const MatrixView<Scalar>> matrices, double* pack, double* scales,
                const Scale& scale_of, AlignedBuffer& rows) {
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
    scales[lane] = scale_of(largest[lane]);
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

// How much of the entropy of the values may be that of values which are taken for 0. Rounding,
// which is a tenth of what is taken for 0, leaves the effective rank within its bound of 1e-3 then.
constexpr double kMostEntropyOfZeros = 2.5e-4;

// Makes 0 of the values up to `noise`, which rounding may have made of 0, so that a rank can be
// read off. Returns whether the effective rank would miss them.
bool clear_noise(std::span<double> values, double noise) {
  double sum = 0.0;
  for (const double value : values) sum += value;
  double missed = 0.0;
  for (double& value : values) {
    if (value > noise) continue;
    const double share = value / sum;
    if (share > 0.0) missed -= share * std::log(share);
    value = 0.0;
  }
  return missed > kMostEntropyOfZeros;
}

// Bidiagonal forms of up to kFloatsInPack matrices in float32, side by side, to `groups`.
template <class Scalar>
void reduce_float_pack(std::span<const MatrixView<Scalar>> matrices, double* groups, double* scales,
                       SingularValuesWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const auto count = static_cast<Index>(matrices.size());
  const Index row = bidiagonal_pack_row(n);
  double* wide = workspace.matrices.resize(n * row);
  FloatLanes* pack = float_lane_buffer(workspace.float_matrices, n * row / kPackWidth);
  std::fill(pack, pack + n * row / kPackWidth, FloatLanes{});
  for (Index half = 0; half < 2 && half * kPackWidth < count; ++half) {
    const Index begin = half * kPackWidth;
    double scale[kPackWidth];
    const auto part = matrices.subspan(begin, std::min(kPackWidth, count - begin));
    interleave(part, wide, scale, float_scale, workspace.rows);
    std::copy(scale, scale + part.size(), scales + begin);
    for (Index i = 0; i < n; ++i) {
      narrow(reinterpret_cast<const Lanes*>(wide + i * row), n, half, pack + i * row / kPackWidth);
    }
  }
  bidiagonalize_float_pack(pack, n, groups, workspace.lines, workspace.vectors);
}

// The same of one, whose columns are side by side, to a lane of a group; returns its scale.
template <class Scalar>
double reduce_float_matrix(const MatrixView<Scalar>& matrix, double* diagonal,
                           double* superdiagonal, SingularValuesWorkspace& workspace) {
  const Index n = matrix.rows();
  double* row = workspace.rows.resize(n);
  FloatPanels panels(n, workspace.float_matrices);
  const auto fill = [&](double scale) {
    double largest = 0.0;
    for (Index i = 0; i < n; ++i) {
      widen_row(matrix, i, n, row);
      largest = std::max(largest, largest_magnitude(row, n));
      panels.set_row(i, row, scale);
    }
    return largest;
  };
  const double scale = float_scale(fill(1.0));
  if (scale != 1.0) fill(scale);
  panels.bidiagonalize(diagonal, superdiagonal, dqds_width(), workspace.vectors);
  return scale;
}

// Of up to kFloatsInPack square matrices in float32. Returns those whose values near 0 are too many
// for it.
template <class Scalar>
std::vector<Index> in_float32(std::span<const MatrixView<Scalar>> matrices,
                              std::span<double* const> out, SingularValuesWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const auto count = static_cast<Index>(matrices.size());
  const Index width = dqds_width();
  double* groups = workspace.bidiagonals.resize(float_groups_size(n));
  double scales[kMostTogether];
  if (n <= kLargestFloatPack) {
    reduce_float_pack(matrices, groups, scales, workspace);
  } else {
    std::fill(groups, groups + float_groups_size(n), 0.0);
    for (Index k = 0; k < count; ++k) {
      double* diagonal = groups + k / width * group_size(n) + k % width;
      scales[k] = reduce_float_matrix(matrices[k], diagonal, diagonal + n * width, workspace);
    }
  }
  float_bidiagonal_singular_values(groups, n, out, workspace.dqds);
  const double share = n <= kLargestFloatPack ? kNoiseOfRow * static_cast<double>(n) : kNoise;
  std::vector<Index> beyond;
  for (Index k = 0; k < count; ++k) {
    if (clear_noise({out[k], static_cast<std::size_t>(n)}, share * out[k][0])) beyond.push_back(k);
    for (Index i = 0; i < n && scales[k] != 1.0; ++i) out[k][i] /= scales[k];
  }
  return beyond;
}

// Values of AAᵀ are off by a few roundings of the largest: the root of one that is this share of
// the largest is off by a tenth of itself at most.
constexpr double kGramNoise = 0x1p-23;

// AAᵀ of up to kPackWidth matrices, tridiagonal in the lanes from `diagonal` and `beside` on.
template <class Scalar>
void reduce_gram_pack(std::span<const MatrixView<Scalar>> part, double* scales, double* diagonal,
                      double* beside, SingularValuesWorkspace& workspace) {
  const Index n = part.front().rows();
  const Index room = bidiagonal_pack_row(n) / kPackWidth;
  double* pack = workspace.matrices.resize(n * bidiagonal_pack_row(n));
  interleave(part, pack, scales, safe_scale, workspace.rows);
  const Lanes* rows = lanes_at(static_cast<const double*>(pack));
  bool causal = true;
  for (Index i = 0; causal && i < n; ++i) {
    Lanes largest{};
    for (Index j = i + 1; j < n; ++j) largest = larger(largest, magnitude(rows[i * room + j]));
    causal = !any(largest != 0.0);
  }
  Lanes* gram = lane_buffer(workspace.rectangle, triangle_row(n));
  packed_gram(
      n, [=](Index i) { return rows + i * room; },
      [=](Index i) { return causal ? std::min(n, i + 1) : n; }, gram);
  tridiagonalize(gram, n, lanes_at(diagonal), lanes_at(beside), dqds_width() / kPackWidth,
                 lane_buffer(workspace.vectors, 4 * n));
}

// Of square matrices, as roots of the eigenvalues of AAᵀ: a product and the reduction of a
// symmetric matrix take less than the reduction of A. Returns those whose values near 0 are too
// many for it.
template <class Scalar>
std::vector<Index> by_gram(std::span<const MatrixView<Scalar>> matrices,
                           std::span<double* const> out, SingularValuesWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const auto count = static_cast<Index>(matrices.size());
  const Index width = dqds_width();
  double* diagonal = workspace.bidiagonals.resize(2 * n * width);
  double* beside = diagonal + n * width;
  double* values = workspace.factors.resize(n * width);
  std::vector<Index> beyond;
  double scales[kMostTogether];
  for (Index first = 0; first < count; first += width) {
    const Index size = std::min(width, count - first);
    std::fill(diagonal, diagonal + 2 * n * width, 0.0);
    for (Index lane = 0; lane < size; lane += kPackWidth) {
      reduce_gram_pack(matrices.subspan(first + lane, std::min(kPackWidth, size - lane)),
                       scales + lane, diagonal + lane, beside + lane, workspace);
    }
    tridiagonal_eigenvalues(diagonal, beside, n, size, values, workspace.dqds);
    for (Index lane = 0; lane < size; ++lane) {
      double* sigma = out[first + lane];
      for (Index i = 0; i < n; ++i) sigma[i] = std::sqrt(std::max(values[lane * n + i], 0.0));
      if (clear_noise({sigma, static_cast<std::size_t>(n)}, kGramNoise * sigma[0])) {
        beyond.push_back(first + lane);
      }
      for (Index i = 0; i < n; ++i) sigma[i] /= scales[lane];
    }
  }
  return beyond;
}

}  // namespace

Index singular_values_width(Precision precision) {
  return precision == Precision::fast ? std::max(kFloatsInPack, dqds_width()) : dqds_width();
}

template <class Scalar>
Index singular_values(std::span<const MatrixView<Scalar>> matrices, std::span<double* const> out,
                      SingularValuesWorkspace& workspace, Precision precision) {
  const auto together = static_cast<std::size_t>(dqds_width());
  const bool square = matrices.front().rows() == matrices.front().cols();
  if (precision == Precision::fast && square) {
    const Index n = matrices.front().rows();
    const std::vector<Index> beyond = n <= kLargestFloatPack || n > kLargestPackedGram
                                          ? in_float32(matrices, out, workspace)
                                          : by_gram(matrices, out, workspace);
    std::vector<MatrixView<Scalar>> again;
    std::vector<double*> places;
    for (const Index k : beyond) {
      again.push_back(matrices[k]);
      places.push_back(out[k]);
    }
    if (!again.empty()) {
      singular_values(std::span<const MatrixView<Scalar>>(again), std::span<double* const>(places),
                      workspace);
    }
    return static_cast<Index>(again.size());
  }
  if (matrices.size() > together) {
    // A fast pack of smaller matrices is wider.
    for (std::size_t first = 0; first < matrices.size(); first += together) {
      const std::size_t size = std::min(together, matrices.size() - first);
      singular_values(matrices.subspan(first, size), out.subspan(first, size), workspace);
    }
    return 0;
  }
  if (!square) {
    of_rectangles(matrices, out, workspace);
    return 0;
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
      interleave(part, pack, scales + first, safe_scale, workspace.rows);
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
  return 0;
}

ATTNSCOPE_COMPILE(singular_values);

}  // namespace attnscope
