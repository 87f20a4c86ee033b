// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace attnscope {

using Index = std::int64_t;

}  // namespace attnscope
