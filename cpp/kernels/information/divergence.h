// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "matrix/matrix_view.h"
#include "simd/memory.h"

// How far the heads of one layer are from their mean. Rows are independent, so a layer can be
// worked off in blocks of rows [begin, end); nothing here holds more than a few rows a head.
namespace attnscope {

struct DivergenceWorkspace {
  std::vector<RowScratch> rows;
  AlignedBuffer mean;
  AlignedBuffer removed_mean;
  AlignedBuffer factors;
  AlignedBuffer terms;
};

// KL(A^h_i ‖ Ā_i) = Σ_j A^h_ij (log A^h_ij − log Ā_ij) in nats, over the keys that head h lets
// query i see, with Ā the mean over heads, to out[h·stride + i] for begin <= i < end. Rows are
// taken as they are. Range [0, log h] for rows that sum to 1; exactly 0 for one head. A negative
// entry makes its row NaN, and so does one above 1e305, whose x log x is no number. `entropy`,
// where it is not null, holds −Σ x log x of the rows (of row_statistics) at the same places, and
// only the mean's logarithms are left. Kullback and Leibler 1951.
template <class Scalar>
void head_divergence(std::span<const MatrixView<Scalar>> heads, std::span<const Support> supports,
                     Index begin, Index end, double* out, Index stride,
                     DivergenceWorkspace& workspace, const double* entropy = nullptr);

// Queries whose divergences `fast` adds up before it compares the sum with what it may be off by.
inline constexpr Index kDivergenceRows = 16;

// Σ of head_divergence over the kDivergenceRows queries of group g, to sums[h·stride + g], for the
// groups of [begin, end), `begin` a multiple of kDivergenceRows. Of float32 and half types in
// float32, as one sum of A log(A / Ā), with a relative error below 1e-5. Where float32 does not
// hold that, for one head of a group, the group is exact and fell_back[g] says so; matrices in
// float64, and of rows shorter than a vector, are exact without that.
template <class Scalar>
void fast_head_divergence(std::span<const MatrixView<Scalar>> heads,
                          std::span<const Support> supports, Index begin, Index end, double* sums,
                          bool* fell_back, Index stride, DivergenceWorkspace& workspace);

// Where the rows of sink_removal go: entry h·stride + i of each, entry (h·stride + i)·width + j of
// `attention`, which may be null.
struct RemovalRows {
  double* before;
  double* after;
  bool* excluded;
  double* attention;
  Index stride;
  Index width;
  // What a learned sink takes of each row, at the places of `before`: one more key, which stays.
  // Null: none.
  const double* sink_mass = nullptr;
};

// Takes the keys with removed[j·key_stride] out of every row and rescales what is left to sum 1. A
// row with nothing left is excluded: 0 in `before`, `after` and `attention`. `before` is the
// divergence of the row as it was, `after` that of the rescaled row from the mean over the heads
// whose row survives.
template <class Scalar>
void sink_removal(std::span<const MatrixView<Scalar>> heads, std::span<const Support> supports,
                  const bool* removed, Index key_stride, Index begin, Index end,
                  const RemovalRows& out, DivergenceWorkspace& workspace);

}  // namespace attnscope
