// SPDX-License-Identifier: MIT
#include "linalg/bidiagonal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "simd/lanes.h"
#include "simd/square_roots.h"

namespace attnscope {
namespace {

// Vectors of a block of columns: as many as the registers hold three times over.
constexpr Index kBlock = kPackWidth == 8 ? 6 : 3;

// One number of a row for all columns of a vector: a pack's lanes are matrices, a single matrix's
// lanes are its columns.
inline Lanes spread(const Lanes& number) { return number; }
inline FloatLanes spread(const FloatLanes& number) { return number; }
inline Lanes spread(const double& number) { return broadcast(number); }

// A −= u·wᵀ + x·vᵀ in `count` rows of kVectors vectors from `a`, and product = unᵀA.
template <Index kVectors, class Vector, class Number>
void update(Vector* a, Index row, Index count, const Number* u, const Number* x, const Number* un,
            const Vector* w, const Vector* v, Vector* product) {
  Vector left[kVectors], right[kVectors], sum[kVectors] = {};
  for (Index j = 0; j < kVectors; ++j) {
    left[j] = w[j];
    right[j] = v[j];
  }
  for (Index i = 0; i < count; ++i) {
    const Vector ui = spread(u[i]), xi = spread(x[i]), next = spread(un[i]);
#pragma GCC unroll 6
    for (Index j = 0; j < kVectors; ++j) {
      Vector entry = a[j] - ui * left[j];
      entry -= xi * right[j];
      a[j] = entry;
      sum[j] += next * entry;
    }
    a += row;
  }
  for (Index j = 0; j < kVectors; ++j) product[j] = sum[j];
}

// product += A·v for `count` rows of kVectors vectors from `a`, lane by lane.
template <Index kVectors, class Vector>
void multiply(const Vector* a, Index row, Index count, const Vector* v, Vector* product) {
  Vector right[kVectors];
  for (Index j = 0; j < kVectors; ++j) right[j] = v[j];
  for (Index i = 0; i < count; ++i) {
    Vector even = product[i];
    Vector odd{};
#pragma GCC unroll 6
    for (Index j = 0; j < kVectors; ++j) (j % 2 == 0 ? even : odd) += a[j] * right[j];
    product[i] = even + odd;
    a += row;
  }
}

// Sums of squares below this have lost digits to subnormal numbers, and a reflector made of them is
// not orthogonal: such a tail is 0 beside entries that begin near 1.
template <class Number>
constexpr Number kSmallestTail =
    std::numeric_limits<Number>::min() / std::numeric_limits<Number>::epsilon();

// Makes x = (1, v2, …) the reflector of x with factor tau; returns the entry that x becomes. Its
// tail is x's times `scale`. A lane without a tail gets tau = 0.
template <class Vector>
  requires(!std::is_floating_point_v<Vector>)
Vector reflector(Vector* x, Index size, Vector& tau, Vector& scale) {
  using Number = std::remove_cvref_t<decltype(tau[0])>;
  Vector even{};
  Vector odd{};
  Index i = 1;
  for (; i + 1 < size; i += 2) {
    even += x[i] * x[i];
    odd += x[i + 1] * x[i + 1];
  }
  if (i < size) even += x[i] * x[i];
  const Vector tail = even + odd;
  const Vector head = x[0];
  const Vector norm = square_root(head * head + tail);
  const Vector beta = head > Number{0} ? -norm : norm;
  const auto needed = tail > kSmallestTail<Number>;
  const Vector one = broadcast(Number{1});
  scale = needed ? Number{1} / (needed ? head - beta : one) : Vector{};
  tau = needed ? (beta - head) / (needed ? beta : one) : Vector{};
  x[0] = one;
  for (i = 1; i < size; ++i) x[i] *= scale;
  return needed ? beta : head;
}

// The same for one vector of numbers.
double reflector(double* x, Index size, double& tau, double& scale) {
  double sums[4] = {};
  Index i = 1;
  for (; i + 3 < size; i += 4) {
    for (Index k = 0; k < 4; ++k) sums[k] += x[i + k] * x[i + k];
  }
  for (; i < size; ++i) sums[0] += x[i] * x[i];
  const double tail = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  const double head = x[0];
  if (!(tail > kSmallestTail<double>)) {
    tau = 0.0;
    scale = 0.0;
    x[0] = 1.0;
    std::fill(x + 1, x + size, 0.0);
    return head;
  }
  const double norm = std::sqrt(head * head + tail);
  const double beta = head > 0.0 ? -norm : norm;
  scale = 1.0 / (head - beta);
  tau = (beta - head) / beta;
  x[0] = 1.0;
  for (i = 1; i < size; ++i) x[i] *= scale;
  return beta;
}

// The reduction of a pack (Number: Lanes, a vector is a column) or of one matrix (Number: double, a
// vector is kPackWidth columns), whose rows are `row` vectors apart and `vectors` long. Column k's
// step reads the matrix once: a block of columns that has been updated is complete, so that its
// part of the right reflector and, before it leaves the first-level cache, that part's product with
// the matrix follow. Vectors run along rows from the one that holds column k + 1: w and v are 0 in
// the columns before, so what the passes do to finished columns is nothing. `keep(i, d, e)` takes
// the bidiagonal's entries.
template <class Number, class Vector, class Keep>
void reduce(Vector* a, Index row, Index vectors, Index n, AlignedBuffer& scratch, Keep&& keep) {
  constexpr Index kWidth =
      static_cast<Index>(sizeof(Vector) / sizeof(Number));  // columns of a vector
  Number* entries = reinterpret_cast<Number*>(a);
  const Index line = row * kWidth;
  const Index size = std::max(vectors, (n + kWidth - 1) / kWidth) + 8;
  Vector* space = reinterpret_cast<Vector*>(lane_buffer(scratch, 6 * size + n));
  std::fill(space, space + 6 * size, Vector{});
  Number* u = reinterpret_cast<Number*>(space);
  Number* w = reinterpret_cast<Number*>(space + size);
  Number* x = reinterpret_cast<Number*>(space + 2 * size);
  Number* v = reinterpret_cast<Number*>(space + 3 * size);
  Number* un = reinterpret_cast<Number*>(space + 4 * size);
  Number* wn = reinterpret_cast<Number*>(space + 5 * size);
  Vector* product = space + 6 * size;
  const auto lanes = [](Number* p) { return reinterpret_cast<Vector*>(p); };
  for (Index k = 0; k < n; ++k) {
    for (Index i = k; i < n; ++i) un[i] = entries[i * line + k] - u[i] * w[k] - x[i] * v[k];
    if (k == n - 1) {
      keep(k, un[k], Number{});
      break;
    }
    Number tau{}, scale{};
    const Number beta = reflector(un + k, n - k, tau, scale);
    // Finished columns in the first vector stay as they are.
    const Index from = (k + 1) / kWidth;
    for (Index j = from * kWidth; j <= k; ++j) w[j] = v[j] = Number{};
    std::fill(product + k + 1, product + n, Vector{});
    Number head{};
    const auto block = [&]<Index kVectors>(Index first) {
      update<kVectors>(a + k * row + first, row, n - k, u + k, x + k, un + k, lanes(w) + first,
                       lanes(v) + first, lanes(wn) + first);
      for (Index j = first * kWidth; j < (first + kVectors) * kWidth; ++j) {
        if (j <= k) {
          wn[j] = v[j] = Number{};
        } else {
          wn[j] *= tau;
          v[j] = entries[k * line + j] - wn[j];
        }
      }
      if (first == from) {
        // The reflector's first entry is 1 whatever this one is.
        head = v[k + 1];
        v[k + 1] = Number{};
      }
      multiply<kVectors>(a + (k + 1) * row + first, row, n - k - 1, lanes(v) + first,
                         product + k + 1);
    };
    Index first = from;
    for (; first + kBlock <= vectors; first += kBlock) block.template operator()<kBlock>(first);
    for (; first < vectors; ++first) block.template operator()<1>(first);
    v[k + 1] = head;
    Number tau_right{}, scale_right{};
    keep(k, beta, reflector(v + k + 1, n - k - 1, tau_right, scale_right));
    Number overlap{};
    for (Index j = k + 1; j < n; ++j) overlap += wn[j] * v[j];
    for (Index i = k + 1; i < n; ++i) {
      Number along;
      if constexpr (kWidth == 1) {
        along = product[i];
      } else {
        along = sum_of_lanes(product[i]);
      }
      x[i] = tau_right * (along * scale_right + entries[i * line + k + 1] - un[i] * overlap);
    }
    std::swap(u, un);
    std::swap(w, wn);
  }
}

}  // namespace

// A few vectors beyond n, so that the rows of a power of two do not fall on the same cache sets.
Index bidiagonal_pack_row(Index n) { return (n + (n % 2 == 0 ? 5 : 4)) * kPackWidth; }
Index bidiagonal_row(Index n) { return ((n + 7) / 8 + ((n + 7) / 8 % 2 == 0 ? 1 : 0)) * 8; }

void bidiagonalize_pack(double* pack, Index n, double* diagonal, double* superdiagonal,
                        Index stride, AlignedBuffer& scratch) {
  reduce<Lanes>(reinterpret_cast<Lanes*>(pack), bidiagonal_pack_row(n) / kPackWidth, n, n, scratch,
                [&](Index i, const Lanes& d, const Lanes& e) {
                  std::memcpy(diagonal + i * stride, &d, sizeof d);
                  std::memcpy(superdiagonal + i * stride, &e, sizeof e);
                });
}

void bidiagonalize_float_pack(float* pack, Index n, float* diagonal, float* superdiagonal,
                              AlignedBuffer& scratch) {
  reduce<FloatLanes>(reinterpret_cast<FloatLanes*>(pack), bidiagonal_pack_row(n) / kPackWidth, n, n,
                     scratch, [&](Index i, const FloatLanes& d, const FloatLanes& e) {
                       std::memcpy(diagonal + i * kFloatsInPack, &d, sizeof d);
                       std::memcpy(superdiagonal + i * kFloatsInPack, &e, sizeof e);
                     });
}

void bidiagonalize(double* matrix, Index n, double* diagonal, double* superdiagonal, Index stride,
                   AlignedBuffer& scratch) {
  const Index vectors = bidiagonal_row(n) / kPackWidth;
  reduce<double>(reinterpret_cast<Lanes*>(matrix), vectors, vectors, n, scratch,
                 [&](Index i, double d, double e) {
                   diagonal[i * stride] = d;
                   superdiagonal[i * stride] = e;
                 });
}

}  // namespace attnscope
