// SPDX-License-Identifier: MIT
#include "kernels/base/bidiagonal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/base/lanes.h"

namespace attnscope {
namespace {

// Rows that a pass keeps in registers: as many as the instruction set has room for.
constexpr Index kUpdateRows = kPackWidth == 8 ? 6 : 4;
constexpr Index kProductRows = kPackWidth == 8 ? 8 : 6;

double sum_of(Lanes x) {
  double sum = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) sum += x[lane];
  return sum;
}

// A −= u·wᵀ + x·vᵀ for kRows rows from column `from`, and product += unᵀA.
template <Index kRows>
void update(Lanes* a, Index row, const Lanes* u, const Lanes* x, const Lanes* un, const Lanes* w,
            const Lanes* v, Lanes* product, Index from, Index to) {
  Lanes left[kRows], right[kRows], next[kRows];
  for (Index r = 0; r < kRows; ++r) {
    left[r] = u[r];
    right[r] = x[r];
    next[r] = un[r];
  }
  for (Index j = from; j < to; ++j) {
    const Lanes wj = w[j];
    const Lanes vj = v[j];
    Lanes sum = product[j];
#pragma GCC unroll 8
    for (Index r = 0; r < kRows; ++r) {
      Lanes entry = a[r * row + j] - left[r] * wj;
      entry -= right[r] * vj;
      a[r * row + j] = entry;
      sum += next[r] * entry;
    }
    product[j] = sum;
  }
}

// The dot products of kRows rows of A with v.
template <Index kRows>
void multiply(const Lanes* a, Index row, const Lanes* v, Lanes* product, Index from, Index to) {
  Lanes sum[kRows] = {};
  for (Index j = from; j < to; ++j) {
    const Lanes vj = v[j];
#pragma GCC unroll 8
    for (Index r = 0; r < kRows; ++r) sum[r] += a[r * row + j] * vj;
  }
  for (Index r = 0; r < kRows; ++r) product[r] = sum[r];
}

// Makes x = (1, v2, …) the reflector of x with factor tau; returns the entry that x becomes. A lane
// whose tail is 0 gets tau = 0.
Lanes reflector(Lanes* x, Index size, Lanes& tau) {
  Lanes even{};
  Lanes odd{};
  Index i = 1;
  for (; i + 1 < size; i += 2) {
    even += x[i] * x[i];
    odd += x[i + 1] * x[i + 1];
  }
  if (i < size) even += x[i] * x[i];
  const Lanes tail = even + odd;
  const Lanes head = x[0];
  const Lanes norm = square_root(head * head + tail);
  const Lanes beta = head > 0.0 ? -norm : norm;
  const LaneMask needed = tail > 0.0;
  const Lanes one = broadcast(1.0);
  const Lanes scale = needed ? 1.0 / (needed ? head - beta : one) : Lanes{};
  tau = needed ? (beta - head) / (needed ? beta : one) : Lanes{};
  x[0] = one;
  for (i = 1; i < size; ++i) x[i] *= scale;
  return needed ? beta : head;
}

// The same for one vector of numbers.
double reflector(double* x, Index size, double& tau) {
  double sums[4] = {};
  Index i = 1;
  for (; i + 3 < size; i += 4) {
    for (Index k = 0; k < 4; ++k) sums[k] += x[i + k] * x[i + k];
  }
  for (; i < size; ++i) sums[0] += x[i] * x[i];
  const double tail = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const double head = x[0];
  if (!(tail > 0.0)) {
    tau = 0.0;
    x[0] = 1.0;
    std::fill(x + 1, x + size, 0.0);
    return head;
  }
  const double norm = std::sqrt(head * head + tail);
  const double beta = head > 0.0 ? -norm : norm;
  const double scale = 1.0 / (head - beta);
  tau = (beta - head) / beta;
  x[0] = 1.0;
  for (i = 1; i < size; ++i) x[i] *= scale;
  return beta;
}

}  // namespace

Index bidiagonal_pack_width() { return kPackWidth; }

// A few vectors beyond n, so that the rows of a power of two do not fall on the same cache sets.
Index bidiagonal_pack_row(Index n) { return (n + (n % 2 == 0 ? 5 : 4)) * kPackWidth; }
Index bidiagonal_row(Index n) { return ((n + 7) / 8 + ((n + 7) / 8 % 2 == 0 ? 1 : 0)) * 8; }

void bidiagonalize_pack(double* pack, Index n, double* diagonal, double* superdiagonal,
                        Index stride, AlignedBuffer& scratch) {
  Lanes* a = reinterpret_cast<Lanes*>(pack);
  const Index row = bidiagonal_pack_row(n) / kPackWidth;
  const Index size = n + 8;
  Lanes* u = lane_buffer(scratch, 6 * size);
  Lanes* w = u + size;
  Lanes* x = w + size;
  Lanes* v = x + size;
  Lanes* un = v + size;
  Lanes* wn = un + size;
  std::fill(u, u + 4 * size, Lanes{});
  const auto store = [&](double* to, Index i, Lanes value) {
    std::memcpy(to + i * stride, &value, sizeof value);
  };
  for (Index k = 0; k < n; ++k) {
    Lanes tau{};
    for (Index i = k; i < n; ++i) un[i] = a[i * row + k] - u[i] * w[k] - x[i] * v[k];
    if (k == n - 1) {
      store(diagonal, k, un[k]);
      store(superdiagonal, k, Lanes{});
      break;
    }
    store(diagonal, k, reflector(un + k, n - k, tau));
    std::fill(wn + k + 1, wn + n, Lanes{});
    Index i = k;
    for (; i + kUpdateRows <= n; i += kUpdateRows) {
      update<kUpdateRows>(a + i * row, row, u + i, x + i, un + i, w, v, wn, k + 1, n);
    }
    for (; i + 2 <= n; i += 2) {
      update<2>(a + i * row, row, u + i, x + i, un + i, w, v, wn, k + 1, n);
    }
    for (; i < n; ++i) update<1>(a + i * row, row, u + i, x + i, un + i, w, v, wn, k + 1, n);
    for (Index j = k + 1; j < n; ++j) {
      wn[j] *= tau;
      v[j] = a[k * row + j] - wn[j];
    }
    Lanes tau_right{};
    store(superdiagonal, k, reflector(v + k + 1, n - k - 1, tau_right));
    i = k + 1;
    for (; i + kProductRows <= n; i += kProductRows) {
      multiply<kProductRows>(a + i * row, row, v, x + i, k + 1, n);
    }
    for (; i + 2 <= n; i += 2) multiply<2>(a + i * row, row, v, x + i, k + 1, n);
    for (; i < n; ++i) multiply<1>(a + i * row, row, v, x + i, k + 1, n);
    Lanes overlap{};
    for (Index j = k + 1; j < n; ++j) overlap += wn[j] * v[j];
    for (Index r = k + 1; r < n; ++r) x[r] = tau_right * (x[r] - un[r] * overlap);
    std::swap(u, un);
    std::swap(w, wn);
  }
}

void bidiagonalize(double* matrix, Index n, double* diagonal, double* superdiagonal, Index stride,
                   AlignedBuffer& scratch) {
  // Vectors run along rows, from the vector that holds column k + 1: w, v and their products are 0
  // in the columns before, so what the passes do to finished columns is nothing.
  const Index row = bidiagonal_row(n);
  const Index vectors = row / kPackWidth;
  const Index size = row + 8;
  double* u = scratch.resize(6 * size);
  double* w = u + size;
  double* x = w + size;
  double* v = x + size;
  double* un = v + size;
  double* wn = un + size;
  std::fill(u, u + 6 * size, 0.0);
  const auto lanes = [](double* p) { return reinterpret_cast<Lanes*>(p); };
  // The passes take one broadcast number a row.
  Lanes left[kUpdateRows], right[kUpdateRows], next[kUpdateRows], sums[kProductRows];
  for (Index k = 0; k < n; ++k) {
    double tau = 0.0;
    for (Index i = k; i < n; ++i) un[i] = matrix[i * row + k] - u[i] * w[k] - x[i] * v[k];
    if (k == n - 1) {
      diagonal[k * stride] = un[k];
      superdiagonal[k * stride] = 0.0;
      break;
    }
    diagonal[k * stride] = reflector(un + k, n - k, tau);
    w[k] = 0.0;
    v[k] = 0.0;
    const Index from = (k + 1) / kPackWidth;
    std::fill(wn + from * kPackWidth, wn + row, 0.0);
    const auto pass = [&]<Index kRows>(Index i) {
      for (Index r = 0; r < kRows; ++r) {
        left[r] = broadcast(u[i + r]);
        right[r] = broadcast(x[i + r]);
        next[r] = broadcast(un[i + r]);
      }
      update<kRows>(lanes(matrix + i * row), vectors, left, right, next, lanes(w), lanes(v),
                    lanes(wn), from, vectors);
    };
    Index i = k;
    for (; i + kUpdateRows <= n; i += kUpdateRows) pass.template operator()<kUpdateRows>(i);
    for (; i < n; ++i) pass.template operator()<1>(i);
    std::fill(wn + from * kPackWidth, wn + k + 1, 0.0);
    for (Index j = k + 1; j < n; ++j) {
      wn[j] *= tau;
      v[j] = matrix[k * row + j] - wn[j];
    }
    double tau_right = 0.0;
    superdiagonal[k * stride] = reflector(v + k + 1, n - k - 1, tau_right);
    i = k + 1;
    const auto product = [&]<Index kRows>(Index first) {
      multiply<kRows>(lanes(matrix + first * row), vectors, lanes(v), sums, from, vectors);
      for (Index r = 0; r < kRows; ++r) x[first + r] = sum_of(sums[r]);
    };
    for (; i + kProductRows <= n; i += kProductRows) product.template operator()<kProductRows>(i);
    for (; i < n; ++i) product.template operator()<1>(i);
    double overlap = 0.0;
    for (Index j = k + 1; j < n; ++j) overlap += wn[j] * v[j];
    for (Index r = k + 1; r < n; ++r) x[r] = tau_right * (x[r] - un[r] * overlap);
    std::swap(u, un);
    std::swap(w, wn);
  }
}

}  // namespace attnscope
