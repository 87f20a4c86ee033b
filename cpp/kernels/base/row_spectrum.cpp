// SPDX-License-Identifier: MIT
#include "kernels/base/row_spectrum.h"

#include <cstring>

#include "kernels/base/packed_gram.h"
#include "kernels/base/standard_rows.h"

namespace attnscope {

// No instruction set works on more matrices at once.
constexpr std::size_t kMostTogether = 32;

Index largest_row_spectrum() { return 256; }

template <class Scalar>
void row_spectra(std::span<const MatrixView<Scalar>> matrices, bool causal,
                 RowSpectrumWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const auto count = static_cast<Index>(matrices.size());
  const Index width = dqds_width();
  const auto place = [=](Index i) { return causal ? padded_triangle_row(i) : i * n; };
  Lanes* rows = lane_buffer(workspace.rows, place(n));
  Lanes* gram = lane_buffer(workspace.gram, triangle_row(n));
  Lanes* vectors = lane_buffer(workspace.vectors, 6 * n);
  double* diagonal = workspace.tridiagonals.resize(2 * n * width);
  double* beside = diagonal + n * width;
  std::fill(diagonal, diagonal + 2 * n * width, 0.0);
  workspace.kept.resize(static_cast<std::size_t>(width));
  for (Index first = 0; first < count; first += kPackWidth) {
    const auto part = matrices.subspan(static_cast<std::size_t>(first),
                                       static_cast<std::size_t>(std::min(kPackWidth, count - first)));
    const Lanes kept =
        standardize_pack(part, causal, place, rows, workspace.lines.resize(kPackWidth * n));
    for (std::size_t lane = 0; lane < part.size(); ++lane) {
      workspace.kept[static_cast<std::size_t>(first) + lane] =
          static_cast<Index>(kept[static_cast<Index>(lane)]);
    }
    packed_gram(
        n, [&](Index i) { return rows + place(i); },
        [=](Index i) { return causal ? std::min(n, i + 1) : n; }, gram);
    tridiagonalize(gram, n, vectors, vectors + n, vectors + 2 * n);
    const double scale = 1.0 / static_cast<double>(n);
    for (Index i = 0; i < n; ++i) {
      const Lanes d = vectors[i] * scale;
      std::memcpy(diagonal + i * width + first, &d, sizeof d);
      if (i + 1 == n) break;
      const Lanes b = vectors[n + i] * scale;
      std::memcpy(beside + i * width + first, &b, sizeof b);
    }
  }
  workspace.values.resize(static_cast<std::size_t>(count * n));
  double* out[kMostTogether];
  for (Index lane = 0; lane < count; ++lane) out[lane] = workspace.values.data() + lane * n;
  tridiagonal_eigenvalues(diagonal, beside, n,
                          std::span<double* const>(out, static_cast<std::size_t>(count)), workspace.dqds);
  for (Index lane = 0; lane < count; ++lane) std::reverse(out[lane], out[lane] + n);
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                              \
  template void row_spectra<Scalar>(std::span<const MatrixView<Scalar>>, bool,     \
                                    RowSpectrumWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
