// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "reader.h"

// Distances of points and subsets of them.
namespace attnscope::fuzz {

// A symmetric matrix of finite numbers, none negative, 0 on the diagonal; rows may lie apart.
template <class Scalar>
class Distances {
 public:
  Distances(Bytes& bytes, Index n) : n_(n), row_(n + bytes.between(0, 3)) {
    memory_.reset(new Scalar[static_cast<std::size_t>(n * row_)]());
    const int family = bytes.byte() % 4;
    const Index levels = bytes.between(1, 5);
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < i; ++j) {
        double distance = bytes.unit();
        if (family == 1) distance = double(bytes.byte() % (levels + 1));
        if (family == 2) distance = std::ldexp(1.0 + distance, int(bytes.byte() % 20) - 10);
        if (family == 3) distance = (i < n / 2) == (j < n / 2) ? 0.01 * distance : 1.0 + distance;
        const auto kept = static_cast<Scalar>(static_cast<float>(distance));
        memory_[i * row_ + j] = memory_[j * row_ + i] = kept;
      }
    }
  }
  MatrixView<Scalar> view() const { return matrix_view<Scalar>(memory_.get(), n_, row_, 1); }
  double operator()(Index i, Index j) const { return static_cast<double>(memory_[i * row_ + j]); }
  Index size() const { return n_; }

  // The same of some of the points, in a contiguous matrix.
  std::vector<Scalar> part(const std::vector<Index>& members) const {
    std::vector<Scalar> own;
    for (const Index i : members) {
      for (const Index j : members) own.push_back(memory_[i * row_ + j]);
    }
    return own;
  }

 private:
  Index n_;
  Index row_;
  std::unique_ptr<Scalar[]> memory_;
};

// Some of n points, as flags and as a list.
struct Members {
  Members(Bytes& bytes, Index n) : flags(new bool[static_cast<std::size_t>(n)]()) {
    const int share = bytes.byte();
    for (Index i = 0; i < n; ++i) {
      flags[i] = bytes.byte() <= share;
      if (flags[i]) list.push_back(i);
    }
  }
  std::unique_ptr<bool[]> flags;
  std::vector<Index> list;
};

}  // namespace attnscope::fuzz
