// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "matrix/matrix_view.h"
#include "matrix/quantile.h"

// Attention sinks: keys on which a head rests. N_j is the number of queries that can see key j.
// Nothing here holds more than a few rows beside the matrix.
namespace attnscope {

// How many queries see each of some keys, and of which maps: those of a batch are mostly alike.
struct VisibleCounts {
  std::vector<double> queries;  // [keys]
  double first_key = 0.0;       // mass of the first key under uniform attention
  Index seeing = 0;             // queries that see a key
  Support::Kind kind = Support::Kind::mask;
  Index shift = 0;
  Index rows = 0;
};

// What far queries give each key j: the sums over the queries with |position − j| >=
// far_distance(keys) that see it, all that see it in cross attention, where those to `expected` and
// `variance` are over the mean and the population variance of row i's far visible entries. Where
// the far entries of a row are exchangeable and rows are independent, `mass` has that mean, at most
// that variance, and no term above `largest`. A key with no far query is 0 everywhere.
struct FarAttention {
  double* mass;           // Σ A_ij [n]
  double* expected;       // [n]
  double* variance;       // [n]
  double* largest;        // the largest far entry of those rows [n]
  double* uniform;        // Σ 1/(keys that i sees), the mass under uniform attention [n]
  std::int64_t* queries;  // their number [n]
};

// What rows give to all keys before, or all keys from, one place: sums that are made once for all
// rows, key after key.
struct FarSums {
  double expected = 0.0;
  double variance = 0.0;
  double largest = 0.0;
  double uniform = 0.0;
  std::int64_t queries = 0;

  void add(const FarSums& other) {
    expected += other.expected;
    variance += other.variance;
    largest = std::max(largest, other.largest);
    uniform += other.uniform;
    queries += other.queries;
  }

  void add_to(const FarAttention& out, Index j) const {
    out.expected[j] += expected;
    out.variance[j] += variance;
    out.largest[j] = std::max(out.largest[j], largest);
    out.uniform[j] += uniform;
    out.queries[j] += queries;
  }
};

struct SinkWorkspace {
  RowScratch rows;
  QuantileWorkspace quantile;
  std::vector<double> far;
  std::vector<double> far_sums;
  std::vector<FarSums> before;
  std::vector<FarSums> from;
  std::vector<Index> queries;
  std::vector<Index> counts;
  VisibleCounts visible;
};

// When a key counts as a sink: at least the share `gamma` of the queries that see it give it `tau`
// or more, and at least ⌈min_visibility·queries⌉ queries see it. Without tau: the 90th percentile
// of the visible entries.
struct SinkRule {
  std::optional<double> tau;
  double gamma = 0.4;
  double min_visibility = 0.3;
};

template <class Scalar>
void sink_tokens(const MatrixView<Scalar>& attention, const Support& support, const SinkRule& rule,
                 bool* out, SinkWorkspace& workspace);

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

// The same for heads that lie side by side: finds out together, where one read can answer for all,
// whether all entries of a layer are finite and what kind of support all its heads have.
// `layer`: [queries, keys·heads], rows contiguous, head h of key j at entry j·heads + h; with
// `find_support` heads are causal, query i seeing the keys up to i + shift, or full, and `kind`
// says which; otherwise it stays as it is. Returns false where heads differ or an entry is not
// finite: then each has to be read by itself. One read of the layer along its memory.
template <class Scalar>
bool read_heads_together(const MatrixView<Scalar>& layer, Index heads, Index shift,
                         bool find_support, Support::Kind& kind);

// Incoming attention of heads that lie side by side, to `out` [heads, keys], from the column sums
// of their layer, sums [keys·heads], which it overwrites; `every_head_is_causal`: what sum_columns
// says of it. With `find_support` a head is causal or full by its own entries, otherwise full. NaN
// for a head that is not finite; returns how many are not. O(keys·heads), and where heads differ a
// read of each.
template <class Scalar>
Index incoming_of_heads(const MatrixView<Scalar>& layer, Index heads, Index shift,
                        bool find_support, bool every_head_is_causal, double* sums, double* out,
                        SinkWorkspace& workspace);

// How far from its query a key of a map of n tokens must be to be tested as a sink:
// max(⌈n/10⌉, min(4, ⌊n/4⌋), 1).
Index far_distance(Index n);

// The matrix must be finite. One read of it, O(n²). Bernstein 1924 (the bound that these feed).
template <class Scalar>
void far_attention(const MatrixView<Scalar>& attention, const Support& support,
                   const FarAttention& out, SinkWorkspace& workspace);

// What `sink_statistics` is asked for besides the arrays that its answers point to.
struct SinkRequest {
  bool position = false;
  double min_visibility = 0.3;
  Index first = 0;    // of sink_share; 0: not asked for
  Index queries = 0;  // of sink_share
  Index top = 0;      // of top_mass; 0: not asked for
  bool fast = false;  // sums and entropies as fast_row_statistics has them
};

//  incoming   α_j = (1/N_j) Σ_{i sees j} A_ij [n], the mean attention that a key receives from the
//             queries that can see it; in [0, 1]; a key that no query sees is NaN
//  entropy    −Σ_j A_ij log A_ij of every query [queries]; see attention_entropy
//  position   the key of largest α_j among those that at least ⌈min_visibility·queries⌉ queries
//             see, the first on ties; −1 when there is none
//  top_mass   share of the total visible mass that the keys of largest incoming mass hold; NaN
//             without mass
struct SinkAnswers {
  double* incoming = nullptr;
  double* entropy = nullptr;
  Index position = -1;
  double top_mass = kNaN;
  SinkShare share{kNaN, kNaN};
  bool fell_back = false;  // whether `fast` left two keys so close that exact sums chose one
};

// All answers from one read of the matrix. With `find_support` that read also finds out the
// support, otherwise `support` is taken as it is. Returns whether all entries are finite; where
// not, nothing is answered.
template <class Scalar>
bool sink_statistics(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                     const SinkRequest& request, SinkAnswers& answers, SinkWorkspace& workspace);

}  // namespace attnscope
