// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "matrix/matrix_view.h"

namespace attnscope {

// The keys T(i) that query i may be looking at; all must be visible.
//  first, self, previous, next   key 0, i, i - 1, i + 1
//  duplicate                     the keys of the same token, but i
//  induction                     the keys behind another copy of token i, but i
//  marked                        the keys of a boolean mask
enum class Pattern { first, self, previous, next, duplicate, induction, marked };

// Numbers of one pattern; the queries with a key in T(i) count. NaN without such a query.
//  share     mean of Σ_{j∈T(i)} A_ij; over all entries ΣA∘1_T/ΣA
//  uniform   the same under uniform attention
//  boost     share/uniform
//  queries   how many queries count
//  distance  ‖A - P‖_F/√(‖A‖² + ‖P‖²) in [0, 1], where P is uniform on T(i) and 0 elsewhere
struct PatternShare {
  double share;
  double uniform;
  double boost;
  std::int64_t queries;
  double distance;
};

// What to look for: `tokens` [n] for duplicate and induction, `marked` for a mask. `all`: shares
// are of all attention.
struct PatternRequest {
  const Pattern* patterns;
  Index count;
  const std::int64_t* tokens;
  Support marked;
  bool all;
};

// Sums over the rows read so far, of one pattern.
struct PatternSums {
  double matched = 0.0;     // Σ_{j∈T(i)} A_ij
  double uniform = 0.0;     // Σ |T(i)|/v_i, of v_i visible keys
  double difference = 0.0;  // ‖A - P‖²
  double pattern = 0.0;     // ‖P‖²
  std::int64_t queries = 0;
};

struct PatternWorkspace {
  RowScratch rows;
  std::vector<Index> order;    // positions by token, then by place
  std::vector<Index> group;    // of each position, where its token begins in `order`
  std::vector<Index> targets;  // T(i)
  std::vector<PatternSums> sums;
};

// The numbers of `request.count` patterns to `out`, in one read of the map. With `find_support` the
// support is judged as auto_support does and stored in `support`, otherwise taken as it is. Returns
// whether all entries are finite; where not, `out` is not written. O(n²), for tokens and masks also
// the number of their targets. Clark et al., 2019; Olsson et al., 2022.
template <class Scalar>
bool pattern_share(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                   const PatternRequest& request, PatternShare* out, PatternWorkspace& workspace);

}  // namespace attnscope
