// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "matrix/matrix_view.h"

namespace attnscope {

// An edge is written as two vertices, the row above the column: row << 16 | column, row > column.
using Edge = std::uint32_t;
inline constexpr Index kMaxVertices = 65535;
inline std::uint32_t edge_row(Edge edge) { return edge >> 16; }
inline std::uint32_t edge_column(Edge edge) { return edge & 0xffffu; }
inline Edge make_edge(std::uint32_t a, std::uint32_t b) {
  return a > b ? a << 16 | b : b << 16 | a;
}

}  // namespace attnscope
