// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "simd/lanes.h"

namespace attnscope {

inline FloatLanes square_root(FloatLanes x) {
  FloatLanes root;
  for (Index lane = 0; lane < kFloatsInPack; ++lane) root[lane] = std::sqrt(x[lane]);
  return root;
}

}  // namespace attnscope
