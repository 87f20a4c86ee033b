// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <vector>

#include "kernels/base/matrix_view.h"
#include "kernels/base/quantile.h"
#include "kernels/base/row_scratch.h"
#include "kernels/base/support.h"

// Attention sinks: keys on which a head rests. N_j is the number of queries that can see key j.
// Nothing here holds more than a few rows beside the matrix.
namespace attnscope {

struct SinkWorkspace {
  RowScratch rows;
  QuantileWorkspace quantile;
  std::vector<double> mass;
  std::vector<Index> queries;
  std::vector<Index> counts;
};

// α_j = (1/N_j) Σ_{i sees j} A_ij, the mean attention a key receives from the queries that can see
// it, to `out` [n]; in [0, 1]. A key that no query sees is NaN. One read of the visible part.
template <class Scalar>
void incoming_attention(const MatrixView<Scalar>& attention, const Support& support, double* out,
                        SinkWorkspace& workspace);

// When a key counts as a sink: at least the share `gamma` of the queries that see it give it `tau`
// or more, and at least ⌈min_visibility·n⌉ queries see it. Without tau: the 90th percentile of the
// visible entries.
struct SinkRule {
  std::optional<double> tau;
  double gamma = 0.4;
  double min_visibility = 0.3;
};

template <class Scalar>
void sink_tokens(const MatrixView<Scalar>& attention, const Support& support, const SinkRule& rule,
                 bool* out, SinkWorkspace& workspace);

// The key of largest α_j among those that at least ⌈min_visibility·n⌉ queries see, the first on
// ties; −1 when there is none.
template <class Scalar>
Index sink_position(const MatrixView<Scalar>& attention, const Support& support,
                    double min_visibility, SinkWorkspace& workspace);

// Mean over the last `queries` queries that see a key of the mass on the first `first` keys, and
// the same mean under uniform attention on the visible keys. NaN when none of them sees a key.
// Reads those entries only.
struct SinkShare {
  double share;
  double uniform;
};

template <class Scalar>
SinkShare sink_share(const MatrixView<Scalar>& attention, const Support& support, Index first,
                     Index queries);

// Share of the total visible mass that the k keys of largest incoming mass hold; NaN without mass.
template <class Scalar>
double top_mass(const MatrixView<Scalar>& attention, const Support& support, Index k,
                SinkWorkspace& workspace);

}  // namespace attnscope
