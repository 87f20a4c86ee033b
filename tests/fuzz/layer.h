// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "reader.h"

// The heads of one layer, and the states of its tokens.
namespace attnscope::fuzz {

template <class Scalar>
struct Layer {
  Layer(Bytes& bytes, Index n, Index heads) {
    const int rule = bytes.byte() % 4;
    for (Index h = 0; h < heads; ++h) {
      maps.push_back(std::make_unique<Map<Scalar>>(bytes, n));
      seen.emplace_back(bytes, *maps.back(), rule);
      views.push_back(maps.back()->view());
      finite = finite && maps.back()->finite();
      negative = negative || maps.back()->negative();
      tame = tame && maps.back()->tame();
      attention = attention && maps.back()->attention();
    }
    for (const Seen& one : seen) supports.push_back(one.support());
  }
  std::vector<std::unique_ptr<Map<Scalar>>> maps;
  std::vector<Seen> seen;
  std::vector<MatrixView<Scalar>> views;
  std::vector<Support> supports;
  bool finite = true;
  bool negative = false;
  bool tame = true;
  bool attention = true;
};

// Token states [n, width], rows apart, in memory of just that size.
template <class Scalar>
struct States {
  States(Bytes& bytes, Index n, Index width) {
    const bool transposed = bytes.flag();
    row_stride = transposed ? 1 : width;
    column_stride = transposed ? n : 1;
    memory.reset(new Scalar[static_cast<std::size_t>(n * width)]);
    const bool hostile = bytes.byte() < 64;
    for (Index k = 0; k < n * width; ++k) {
      const double x = hostile ? special_value(bytes) : 4.0 * (bytes.unit() - 0.5);
      const double kept = std::abs(x) <= 60000.0 || std::isnan(x) ? x : std::copysign(60000.0, x);
      memory[static_cast<std::size_t>(k)] = static_cast<Scalar>(static_cast<float>(kept));
      finite = finite && std::isfinite(static_cast<double>(memory[static_cast<std::size_t>(k)]));
    }
  }
  Index row_stride;
  Index column_stride;
  std::unique_ptr<Scalar[]> memory;
  bool finite = true;
};

}  // namespace attnscope::fuzz
