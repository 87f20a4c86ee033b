// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "linalg/lazy/lazy_head.h"
#include "linalg/lazy/lazy_heads.h"

// Measures of attention from queries and keys, tile by tile, without the map; see LazyHead.
namespace attnscope {

// What is asked for besides the sums that are always taken.
struct LazyRequest {
  bool exact = false;            // products, exponentials and sums of a tile in float64
  std::vector<Index> firsts;     // leading keys whose mass is wanted, a number for each entry
  const Index* nears = nullptr;  // distances below which a key's mass is wanted,
  Index near_count = 0;          // and how many there are
  bool without_first = false;    // key 0 counts neither as near nor as beyond
  Index far = 0;           // distance from which on a key is far; 0: nothing is asked of far keys
  bool columns = false;    // incoming attention and its squares
  double threshold = 0.0;  // entries of at least this weight; 0: none
  Index top = 0;           // keys of largest weight; not together with a threshold
  const void* right = nullptr;  // [channels, keys] of the type that is computed in: A·x
  const void* left = nullptr;   // [queries, channels], channels a multiple of lazy_channels: Aᵀ·x
  Index right_channels = 0;
  Index left_channels = 0;

  bool wants_weights() const { return columns || threshold > 0.0 || top > 0 || left_channels > 0; }
};

// Results of queries; a null pointer is not asked for. Rows of padding are not written.
struct LazyRows {
  double* log_z =
      nullptr;  // logarithm of the sum over visible keys and the learned sink; −infinity of nothing
  double* entropy = nullptr;    // −Σ A log A over real keys, nats
  double* collision = nullptr;  // Σ A²
  double* largest = nullptr;    // max A
  double* distance = nullptr;   // Σ A |i − j|
  double* mass = nullptr;       // Σ A: 1 less what the learned sink takes
  double* first = nullptr;      // [queries, firsts]
  double* near = nullptr;       // Σ A of keys nearer than each distance [queries, nears]
  double* beyond = nullptr;     // Σ A of the others
  double* far_mass = nullptr;   // Σ A, Σ A² and max A of far keys
  double* far_squares = nullptr;
  double* far_largest = nullptr;
  double* product = nullptr;      // A·x [queries, right channels]
  double* top_weights = nullptr;  // [queries, top], 0 and −1 where fewer keys are visible
  std::int64_t* top_keys = nullptr;
};

// Sums over the queries of one call.
struct LazyColumns {
  std::vector<double> incoming;      // Σ A [keys]
  std::vector<double> squares;       // Σ A²
  std::vector<double> far_incoming;  // Σ A of far pairs
  std::vector<double> product;       // Aᵀ·x [keys, left channels]
};

// Entries of at least the threshold, queries in order, keys of a query ascending.
struct LazyEntries {
  std::vector<Index> counts;  // of each query of the call
  std::vector<std::int32_t> keys;
  std::vector<double> weights;
};

struct LazyWorkspace {
  AlignedBuffer packed, widened, weights, maxima, product, sums, ranks;
  LazyHeadsWorkspace of_heads;
  struct Hit {
    std::int32_t row;
    std::int32_t key;
    double weight;
  };
  std::vector<Hit> hits;
};

// Queries that are worked on together.
Index lazy_rows(bool exact);

// What the number of left channels is a multiple of.
Index lazy_channels(bool exact);

// Measures queries [begin, end) of a head, where begin is a multiple of lazy_rows; `columns` and
// `entries` are set to those of these queries. A NaN score makes the rows that see it NaN, and no
// others. O(pairs·width) time; scratch of lazy_rows·keys numbers, below 16 MB, because a longer
// head is gone through twice.
void measure_lazy_rows(const LazyHead& head, Index begin, Index end, const LazyRequest& request,
                       const LazyRows& rows, LazyColumns& columns, LazyEntries& entries,
                       LazyWorkspace& workspace);

// The same of the mean of the heads of a layer, whose log Z is known. `rows`, `columns` and
// `entries` are those of the mean; log Z of the mean is the logarithm of what its rows sum to with
// the learned sink, which is 0 but for rounding.
void measure_lazy_mean_rows(const LazyHeads& heads, Index begin, Index end,
                            const LazyRequest& request, const LazyRows& rows, LazyColumns& columns,
                            LazyEntries& entries, LazyWorkspace& workspace);

// Weights [end − begin, stop − start) of queries and keys in float64, for tiles that are looked at;
// log_z is that of the head's queries.
void lazy_tile(const LazyHead& head, Index begin, Index end, Index start, Index stop, bool exact,
               const double* log_z, double* out, LazyWorkspace& workspace);

}  // namespace attnscope
