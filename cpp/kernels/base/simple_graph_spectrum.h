// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/base/aligned_buffer.h"

namespace attnscope {

// λ2 and λ3 − λ2 of simple graphs on n nodes each, several at a time.
//
// Nodes that touch all others are taken out first: a join of c such nodes with a graph H on m = n − c
// nodes has the eigenvalues 0, c + μ_i(H) for i >= 2, and n (c times). Where H falls into three pieces or
// more, as it does under a sink, λ2 = λ3 = c and nothing is left to solve. Otherwise L(H) + 11ᵀ, whose
// entries are small whole numbers, is made tridiagonal and bisected.
class SimpleGraphSpectra {
 public:
  // Graph with an edge wherever level[i, j] > above, of the given degrees [n] and number of components.
  // The answers are in *fiedler_value and *gap after the next flush(); a gap needs n >= 3.
  void add(const std::uint8_t* level, Index n, std::uint8_t above, const std::int64_t* degree,
           std::int64_t components, double* fiedler_value, double* gap);
  void flush();

 private:
  struct Pending {
    double* fiedler_value;
    double* gap;
    double base;    // nodes taken out
    bool in_two;    // H is in two pieces, so that λ2 is `base` exactly
  };

  void fill(const std::uint8_t* level, Index n, std::uint8_t above, const std::int64_t* degree);
  Index pieces(const std::uint8_t* level, Index n, std::uint8_t above);

  Index n_ = 0;
  std::vector<Index> rest_;  // nodes of H
  std::vector<Index> queue_;
  std::vector<Pending> pending_;
  AlignedBuffer matrices_;
  AlignedBuffer vectors_;
};

}  // namespace attnscope
