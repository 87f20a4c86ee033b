// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

struct QuantileWorkspace {
  RowScratch rows;
  std::vector<std::uint64_t> histogram;
  std::vector<std::uint64_t> candidates;
  std::vector<double> sample;
  std::vector<double> between;
};

// The q-quantile (0 <= q <= 1) of the visible entries, in float64 with linear interpolation between
// order statistics; NaN when no entry is visible. Exact: selection between two entries of a fixed
// sample, or, where the sample misses, by counting leading bits. A few reads of the matrix and at
// most 64k candidates beside it, never a copy. Precondition: finite entries.
template <class Scalar>
double visible_quantile(const MatrixView<Scalar>& attention, const Support& support, double q,
                        QuantileWorkspace& workspace);

}  // namespace attnscope
