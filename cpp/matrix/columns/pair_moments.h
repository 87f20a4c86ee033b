// SPDX-License-Identifier: MIT
#pragma once

namespace attnscope {

// Means and centred second moments of (attention, cosine) pairs: additive over disjoint sets of
// pairs, and exactly 0 where a variable is constant.
struct PairMoments {
  double count = 0.0;
  double mean_a = 0.0;
  double mean_c = 0.0;
  double aa = 0.0;
  double ac = 0.0;
  double cc = 0.0;
};

}  // namespace attnscope
