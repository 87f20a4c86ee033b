// SPDX-License-Identifier: MIT
#include "kernels/base/simple_graph_spectrum.h"

#include <algorithm>
#include <limits>

#include "kernels/base/packed_tridiagonal.h"

namespace attnscope {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The two smallest eigenvalues of each tridiagonal matrix, all eigenvalues being in [0, high] but those
// far above, by bisection to the last bits of `high`. Two searches run side by side, since each waits for
// its divisions.
void two_smallest(const Lanes* diagonal, const Lanes* squares, Index n, Lanes high, Lanes& first,
                  Lanes& second) {
  const Lanes one = broadcast(1.0);
  const Lanes tiny = broadcast(-1e-300);
  Lanes low1{}, low2{};
  Lanes high1 = high, high2 = high;
  for (int round = 0; round < 52; ++round) {
    const Lanes x1 = 0.5 * (low1 + high1);
    const Lanes x2 = 0.5 * (low2 + high2);
    Lanes pivot1 = diagonal[0] - x1;
    Lanes pivot2 = diagonal[0] - x2;
    Lanes count1 = pivot1 < 0.0 ? one : Lanes{};
    Lanes count2 = pivot2 < 0.0 ? one : Lanes{};
    for (Index i = 1; i < n; ++i) {
      pivot1 = pivot1 == 0.0 ? tiny : pivot1;
      pivot2 = pivot2 == 0.0 ? tiny : pivot2;
      pivot1 = diagonal[i] - x1 - squares[i - 1] / pivot1;
      pivot2 = diagonal[i] - x2 - squares[i - 1] / pivot2;
      count1 += pivot1 < 0.0 ? one : Lanes{};
      count2 += pivot2 < 0.0 ? one : Lanes{};
    }
    high1 = count1 >= 1.0 ? x1 : high1;
    low1 = count1 >= 1.0 ? low1 : x1;
    high2 = count2 >= 2.0 ? x2 : high2;
    low2 = count2 >= 2.0 ? low2 : x2;
  }
  first = 0.5 * (low1 + high1);
  second = larger(first, 0.5 * (low2 + high2));
}

}  // namespace

void SimpleGraphSpectra::add(const std::uint8_t* level, Index n, std::uint8_t above,
                             const std::int64_t* degree, std::int64_t components,
                             double* fiedler_value, double* gap) {
  if (n != n_) {
    flush();
    n_ = n;
  }
  *gap = n < 3 ? kNaN : 0.0;
  rest_.clear();
  for (Index i = 0; i < n; ++i) {
    if (degree[i] != n - 1) rest_.push_back(i);
  }
  const Index m = static_cast<Index>(rest_.size());
  const double base = static_cast<double>(n - m);
  if (n == 1 || components >= 3) {
    *fiedler_value = 0.0;
  } else if (m == 0) {
    *fiedler_value = base;
  } else if (m == 2) {
    // Two nodes that do not touch: the third eigenvalue is n.
    *fiedler_value = base;
    if (n >= 3) *gap = 2.0;
  } else {
    const Index in_pieces = m == n ? components : pieces(level, n, above);
    *fiedler_value = base;
    if (in_pieces >= 3) return;
    pending_.push_back({fiedler_value, gap, base, in_pieces == 2});
    fill(level, n, above, degree);
    if (static_cast<Index>(pending_.size()) == kPackWidth) flush();
  }
}

// Number of connected components of the graph on rest_, at most 3.
Index SimpleGraphSpectra::pieces(const std::uint8_t* level, Index n, std::uint8_t above) {
  queue_ = rest_;
  const Index m = static_cast<Index>(queue_.size());
  Index found = 0;
  Index reached = 0;  // queue_[0, reached) is reached, the rest is not
  Index head = 0;
  while (reached < m && found < 3) {
    ++found;
    ++reached;
    for (; head < reached && reached < m; ++head) {
      const std::uint8_t* row = level + queue_[head] * n;
      for (Index k = reached; k < m; ++k) {
        if (row[queue_[k]] > above) std::swap(queue_[k], queue_[reached++]);
      }
    }
    head = reached;
  }
  return found;
}

// The next lane's lower triangle of L(H) + 11ᵀ: 1 where H has no edge, 0 where it has. Lanes are all n
// wide, so that a graph's bits do not depend on what it is packed with; the nodes taken out become
// eigenvalues far above.
void SimpleGraphSpectra::fill(const std::uint8_t* level, Index n, std::uint8_t above,
                              const std::int64_t* degree) {
  const Index lane = static_cast<Index>(pending_.size()) - 1;
  double* entries = reinterpret_cast<double*>(lane_buffer(matrices_, triangle_row(n))) + lane;
  const Index m = static_cast<Index>(rest_.size());
  for (Index i = 0; i < n; ++i) {
    double* row = entries + triangle_row(i) * kPackWidth;
    if (i >= m) {
      for (Index j = 0; j < i; ++j) row[j * kPackWidth] = 0.0;
      row[i * kPackWidth] = 2.0 * static_cast<double>(n);
      continue;
    }
    const std::uint8_t* edges = level + rest_[i] * n;
    for (Index j = 0; j < i; ++j) row[j * kPackWidth] = edges[rest_[j]] > above ? 0.0 : 1.0;
    row[i * kPackWidth] = static_cast<double>(degree[rest_[i]] - (n - m) + 1);
  }
}

void SimpleGraphSpectra::flush() {
  if (pending_.empty()) return;
  const Index n = n_;
  Lanes* a = lane_buffer(matrices_, triangle_row(n));
  double* entries = reinterpret_cast<double*>(a);
  for (Index lane = static_cast<Index>(pending_.size()); lane < kPackWidth; ++lane) {
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j <= i; ++j) entries[(triangle_row(i) + j) * kPackWidth + lane] = i == j ? 1.0 : 0.0;
    }
  }
  Lanes* diagonal = lane_buffer(vectors_, 6 * n);
  Lanes* beside = diagonal + n;
  tridiagonalize(a, n, diagonal, beside, diagonal + 2 * n);
  for (Index i = 0; i + 1 < n; ++i) beside[i] *= beside[i];
  Lanes high{};
  for (std::size_t k = 0; k < pending_.size(); ++k) {
    high[k] = (static_cast<double>(n) - pending_[k].base) * (1.0 + 1e-12);
  }
  Lanes first, second;
  two_smallest(diagonal, beside, n, high, first, second);
  for (std::size_t k = 0; k < pending_.size(); ++k) {
    const Pending& one = pending_[k];
    const double mu2 = one.in_two ? 0.0 : first[k];
    *one.fiedler_value = one.base + mu2;
    *one.gap = second[k] - mu2;
  }
  pending_.clear();
}

}  // namespace attnscope
