// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

// Which one-dimensional signals are read off a map. `rows`: every query's attention over the keys
// that it sees; `last`: that of the last query; `mean`: by key the mean over the
// queries that see it, without keys that none sees; `offset`: the mean over visible pairs by
// distance from the query's own key, without distances that none has.
struct SignalOptions {
  enum class Kind { rows, last, mean, offset };
  Kind kind = Kind::rows;
  // Without key 0, each row divided by what is left of it; a row with nothing left has no signal.
  bool drop_first = false;
  // Minus its mean; a signal whose entries are equal, but for the rounding of means of them,
  // becomes exactly 0.
  bool detrend = false;
  // Shorter signals are passed over, and so are shorter rows in a mean.
  Index min_keys = 32;
};

struct SignalScratch {
  RowScratch rows;
  std::vector<double> signal;
  std::vector<double> pairs;
};

// How many signals a map has room for: one for each query for rows, else 1.
inline Index signal_count(const SignalOptions& options, Index queries) {
  return options.kind == SignalOptions::Kind::rows ? queries : 1;
}

}  // namespace attnscope
