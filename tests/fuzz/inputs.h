// SPDX-License-Identifier: MIT
#pragma once

#include <memory>
#include <vector>

#include "graphs/graph_options.h"
#include "reader.h"
#include "signals/signal.h"

// What kernels take besides one map: options of graphs and signals, the heads of a layer, the
// states of its tokens, distances of points.
namespace attnscope::fuzz {

inline GraphOptions read_options(Bytes& bytes) {
  GraphOptions options;
  const Symmetrize rules[] = {Symmetrize::mean, Symmetrize::max, Symmetrize::min};
  options.symmetrize = rules[bytes.byte() % 3];
  options.normalized = bytes.flag();
  if (bytes.byte() % 4 == 0) options.threshold = 1e-6 + (1.0 - 2e-6) * bytes.unit();
  return options;
}

inline SignalOptions read_signals(Bytes& bytes) {
  using Kind = SignalOptions::Kind;
  const Kind kinds[] = {Kind::rows, Kind::last, Kind::mean, Kind::offset};
  SignalOptions options;
  options.kind = kinds[bytes.byte() % 4];
  options.drop_first = bytes.flag();
  options.detrend = bytes.flag();
  options.min_keys = bytes.between(1, 40);
  return options;
}

// Results that a kernel may leave as they are.
inline std::vector<double> unset(Index size) {
  return std::vector<double>(static_cast<std::size_t>(size),
                             std::numeric_limits<double>::quiet_NaN());
}

inline bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](double x, double y) {
           return same_bits(x, y) || (std::isnan(x) && std::isnan(y));
         });
}

// The heads of one layer.
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
