// SPDX-License-Identifier: MIT
#pragma once

namespace attnscope {

// `exact`: the definition in float64. `fast`: float32 arithmetic within the bound that a kernel
// states, and `exact` on a map where it does not hold.
enum class Precision { exact, fast };

}  // namespace attnscope
