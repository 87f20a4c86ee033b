// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <limits>
#include <type_traits>
#include <utility>

#include "simd/lanes.h"
#include "simd/square_roots.h"

// Symmetric matrices of a pack made tridiagonal, the smallest eigenvalues of tridiagonal ones, and
// how many lie below a point. Every step is done in all lanes with the same operations, so that a
// lane's result does not depend on its neighbours.
namespace attnscope {

// Where row i of a lower triangle begins that is stored without the upper one: half the room, and
// no two rows a power of two apart.
inline Index triangle_row(Index i) { return i * (i + 1) / 2; }

// Rows that share the reading of v, w, u and p: as many as the registers hold.
inline constexpr Index kTridiagonalRows = kPackWidth == 8 ? 5 : 3;

// Rows [i, i + kRows) of a −= v wᵀ + w vᵀ, from column `first` to the diagonal, and their part of p
// = a u: the rows' own entries are set, those of earlier rows are added to.
template <Index kRows, class Vector>
[[gnu::always_inline]] inline void update_rows(Vector* a, Index i, Index first, const Vector* v,
                                               const Vector* w, const Vector* u, Vector* p) {
  Vector* row[kRows];
  Vector own_v[kRows], own_w[kRows], own_u[kRows], sum[kRows];
#pragma GCC unroll 6
  for (Index r = 0; r < kRows; ++r) {
    row[r] = a + triangle_row(i + r);
    own_v[r] = v[i + r];
    own_w[r] = w[i + r];
    own_u[r] = u[i + r];
    sum[r] = Vector{};
  }
  for (Index j = first; j < i; ++j) {
    const Vector vj = v[j], wj = w[j], uj = u[j];
    Vector pj = p[j];
#pragma GCC unroll 6
    for (Index r = 0; r < kRows; ++r) {
      const Vector x = row[r][j] - own_v[r] * wj - own_w[r] * vj;
      row[r][j] = x;
      sum[r] += x * uj;
      pj += x * own_u[r];
    }
    p[j] = pj;
  }
#pragma GCC unroll 6
  for (Index r = 0; r < kRows; ++r) {
#pragma GCC unroll 6
    for (Index c = 0; c <= r; ++c) {
      const Vector x = row[r][i + c] - own_v[r] * own_w[c] - own_w[r] * own_v[c];
      row[r][i + c] = x;
      sum[r] += x * own_u[c];
      if (c < r) sum[c] += x * own_u[r];
    }
  }
#pragma GCC unroll 6
  for (Index r = 0; r < kRows; ++r) p[i + r] = sum[r];
}

// Reduces the symmetric matrices, float64 or float32, in the lower triangles `a` (see triangle_row)
// to tridiagonal form by Householder reflections: diagonal[i·stride], i < n, and beside[i·stride],
// i < n − 1. Destroys `a`; `scratch` holds 4 n. The rank-two update of one step and the product of
// the next share one sweep over the matrix, since reading and writing it costs more than the
// arithmetic. Cost 4/3 n³ operations per lane (Golub and Van Loan, Matrix Computations, 2013,
// section 8.3.1). With `taus`, of n, the reflections stay behind for apply_reflections.
template <class Vector>
void tridiagonalize(Vector* a, Index n, Vector* diagonal, Vector* beside, Index stride,
                    Vector* scratch, Vector* taus = nullptr) {
  using Number = std::remove_cvref_t<decltype(a[0][0])>;
  // A square that cannot be told from zero.
  constexpr Number kSmallest = sizeof(Number) == sizeof(float) ? Number(1e-30) : Number(1e-280);
  assert(n >= 1);
  Vector* v = scratch;          // last reflection
  Vector* w = scratch + n;      // a -= v wᵀ + w vᵀ is still to be done
  Vector* u = scratch + 2 * n;  // this step's reflection
  Vector* p = scratch + 3 * n;  // a u
  for (Index i = 0; i < n; ++i) v[i] = w[i] = Vector{};
  for (Index k = 0; k + 1 < n; ++k) {
    // Column k, which nothing reads again.
    const Vector vk = v[k], wk = w[k];
    const auto entry = [&](Index i) { return a[triangle_row(i) + k] - v[i] * wk - w[i] * vk; };
    diagonal[k * stride] = entry(k);
    const Vector head = entry(k + 1);
    Vector even{}, odd{};
    Index below = k + 2;
    for (; below + 1 < n; below += 2) {
      const Vector x = entry(below), y = entry(below + 1);
      u[below] = x;
      u[below + 1] = y;
      even += x * x;
      odd += y * y;
    }
    if (below < n) {
      u[below] = entry(below);
      even += u[below] * u[below];
    }
    const Vector tail = even + odd;
    const Vector norm = square_root(head * head + tail);
    // A column that is already zero below its head, or whose square cannot be told from zero,
    // stays.
    const auto turn = tail > broadcast(kSmallest);
    const Vector alpha = turn ? (head > Number{0} ? -norm : norm) : head;
    beside[k * stride] = alpha;
    const Vector one = broadcast(Number{1});
    const Vector scale = turn ? one / (head - alpha) : Vector{};
    const Vector tau = turn ? (alpha - head) / alpha : Vector{};
    u[k + 1] = one;
    for (Index i = k + 2; i < n; ++i) u[i] *= scale;
    if (taus != nullptr) {
      taus[k] = tau;
      for (Index i = k + 2; i < n; ++i) a[triangle_row(i) + k] = u[i];
    }

    // Rows that make no whole block come first, where they are short.
    Index i = k + 1;
    for (; (n - i) % kTridiagonalRows != 0; ++i) update_rows<1>(a, i, k + 1, v, w, u, p);
    for (; i < n; i += kTridiagonalRows) {
      update_rows<kTridiagonalRows>(a, i, k + 1, v, w, u, p);
    }

    Vector dots[2] = {};
    for (Index r = k + 1; r < n; ++r) dots[r % 2] += p[r] * u[r];
    const Vector half = Number(-0.5) * tau * tau * (dots[0] + dots[1]);
    for (Index r = k + 1; r < n; ++r) w[r] = tau * p[r] + half * u[r];
    std::swap(u, v);
  }
  const Index last = n - 1;
  diagonal[last * stride] = a[triangle_row(last) + last] - Number{2} * v[last] * w[last];
}

// x = Q x, of the tridiagonal form QᵀAQ that tridiagonalize has left in `a` and `taus`: takes the
// eigenvectors of the one to those of the other. Cost 2 n² operations per lane.
template <class Vector>
void apply_reflections(const Vector* a, Index n, const Vector* taus, Vector* x) {
  for (Index k = n - 3; k >= 0; --k) {
    Vector even = x[k + 1], odd{};
    for (Index i = k + 2; i < n; ++i) (i % 2 == 0 ? even : odd) += a[triangle_row(i) + k] * x[i];
    const Vector along = taus[k] * (even + odd);
    x[k + 1] -= along;
    for (Index i = k + 2; i < n; ++i) x[i] -= along * a[triangle_row(i) + k];
  }
}

// What the characteristic polynomial f of a tridiagonal matrix says at x: −f'/f, −(f'/f)', and
// whether no eigenvalue lies at or below x.
struct TridiagonalProbe {
  Lanes first;   // Σ 1/(λ_i − x)
  Lanes second;  // Σ 1/(λ_i − x)²
  LaneMask below;
};

inline TridiagonalProbe probe(const Lanes* diagonal, const Lanes* squares, Index n, Lanes x) {
  const Lanes one = broadcast(1.0);
  Lanes pivot = diagonal[0] - x;
  LaneMask below = pivot > 0.0;
  Lanes inverse = one / pivot;
  Lanes log_slope = -inverse;  // derivative of the pivot's logarithm
  Lanes bend = -log_slope * log_slope;
  Lanes first = -log_slope;
  Lanes second = -bend;
  for (Index i = 1; i < n; ++i) {
    const Lanes ratio = squares[i - 1] * inverse;
    pivot = diagonal[i] - x - ratio;
    below &= pivot > 0.0;
    const Lanes curve = ratio * (bend - log_slope * log_slope);
    inverse = one / pivot;
    log_slope = (ratio * log_slope - one) * inverse;
    bend = curve * inverse - log_slope * log_slope;
    first -= log_slope;
    second -= bend;
  }
  return {first, second, below};
}

// The smallest eigenvalue of each positive definite tridiagonal matrix (`squares`: the off-diagonal
// entries squared), to 2e-14 of itself or to the rounding of the matrix's norm, whichever is
// larger.
//
// For x below the spectrum, with S1 = Σ 1/(λ_i − x) and S2 = Σ 1/(λ_i − x)², Laguerre's step
// x + n / (S1 + sqrt((n − 1)(n S2 − S1²))) stays below the smallest eigenvalue and x + S1/S2, a
// mean of the λ_i with positive weights, stays above: a bracket that closes cubically at a simple
// eigenvalue, and from above quadratically at a multiple one. `low` is where the search starts, and
// must lie below the spectrum. Lanes that do not converge (never seen) are NaN. Reference: Parlett,
// Laguerre's method applied to the matrix eigenvalue problem, 1964.
inline Lanes smallest_eigenvalue(const Lanes* diagonal, const Lanes* squares, Index n, Lanes low,
                                 Lanes norm) {
  assert(n >= 1);
  const double order = static_cast<double>(n);
  const Lanes noise = 4.0 * std::numeric_limits<double>::epsilon() * norm;
  Lanes high = broadcast(std::numeric_limits<double>::infinity());
  for (Index i = 0; i < n; ++i) high = smaller(high, diagonal[i]);
  Lanes x = low;
  Lanes safe = low;
  Lanes ceiling = high;
  Lanes eigenvalue = broadcast(std::numeric_limits<double>::quiet_NaN());
  LaneMask searching = eigenvalue != eigenvalue;
  for (int round = 0; round < 200; ++round) {
    const TridiagonalProbe at = probe(diagonal, squares, n, x);
    const Lanes spread = order * at.second - at.first * at.first;
    const Lanes laguerre =
        x + order / (at.first + square_root((order - 1.0) * larger(spread, Lanes{})));
    const Lanes mean = x + at.first / at.second;
    low = at.below ? larger(low, x) : low;
    high = at.below ? high : smaller(high, x);
    safe = at.below ? larger(safe, laguerre) : safe;
    const Lanes upper = at.below ? smaller(ceiling, mean) : ceiling;
    const Lanes moved = ceiling - upper;
    ceiling = upper;
    high = smaller(high, ceiling);
    safe = smaller(safe, high);
    const Lanes tolerance = larger(2e-14 * high, noise);
    const LaneMask done = searching & (high - safe <= tolerance);
    eigenvalue = done ? 0.5 * (high + safe) : eigenvalue;
    searching &= ~done;
    if (!any(searching)) break;
    // Below the ceiling by twice the distance it last fell is nearly always still below the
    // spectrum. Where it is not, the next step is Laguerre's.
    const Lanes bold = ceiling - larger(2.0 * moved, 0.5 * tolerance);
    x = (at.below & (bold > safe) & (bold < high)) ? bold : safe;
    x = x > low ? x : 0.5 * (low + high);
  }
  return eigenvalue;
}

// An off-diagonal entry this small, squared and in units of the norm, is no smaller: a minor of
// exactly 0 is then followed by one of the other sign than the minor before, so that it does not
// matter which sign it counts with.
inline constexpr double kSmallestSquare = 1e-36;

// Minors p and q of a tridiagonal matrix minus x, one row apart, and how many eigenvalues the rows
// so far have below x: as often as consecutive minors differ in sign. Without a division a step
// waits for two products alone. Squares of off-diagonal entries are at least kSmallestSquare.
struct SturmMinors {
  Lanes p, q;
  LaneMask changes;

  SturmMinors() = default;
  explicit SturmMinors(Lanes pivot) : p(pivot), q(broadcast(1.0)), changes{} { count(); }
  void step(Lanes pivot, Lanes square) {
    const Lanes next = pivot * p - square * q;
    q = p;
    p = next;
    count();
  }
  // Both by a power of two, so that neither overflows nor vanishes. In a matrix of norm 1 eight
  // steps shrink the larger by no more than a rounding each.
  void rescale() {
    constexpr long kExponent = 0x7ffL << 52, kTwice = 2046L << 52;
    const Lanes size = larger(magnitude(p), magnitude(q));
    const Lanes scale = std::bit_cast<Lanes>(kTwice - (std::bit_cast<LaneMask>(size) & kExponent));
    p *= scale;
    q *= scale;
  }

 private:
  void count() { changes += (std::bit_cast<LaneMask>(p) ^ std::bit_cast<LaneMask>(q)) >> 63; }
};

// The two smallest eigenvalues of each tridiagonal matrix (`beside`: its off-diagonal entries), all
// being in [0, high] but those behind, by bisection to `high` times 2^-halvings: to its last bits,
// unless told otherwise. Entries are at most 2 n in size and are left in units of n. Two searches
// run side by side, since each step waits for the last.
inline void two_smallest_eigenvalues(Lanes* diagonal, Lanes* beside, Index n, Lanes high,
                                     Lanes& first, Lanes& second, int halvings = 52) {
  assert(n >= 1);
  constexpr Index kStride = 8;
  const double norm = static_cast<double>(std::bit_ceil(static_cast<std::uint64_t>(n)));
  const double unit = 1.0 / norm;
  for (Index i = 0; i < n; ++i) diagonal[i] *= unit;
  for (Index i = 0; i + 1 < n; ++i) {
    beside[i] = larger(beside[i] * beside[i] * (unit * unit), broadcast(kSmallestSquare));
  }
  high *= unit;
  Lanes low1{}, low2{};
  Lanes high1 = high, high2 = high;
  for (int round = 0; round < halvings; ++round) {
    const Lanes x1 = 0.5 * (low1 + high1);
    const Lanes x2 = 0.5 * (low2 + high2);
    SturmMinors minors1(diagonal[0] - x1), minors2(diagonal[0] - x2);
    for (Index begin = 1; begin < n; begin += kStride) {
      const Index end = begin + kStride < n ? begin + kStride : n;
      for (Index i = begin; i < end; ++i) {
        minors1.step(diagonal[i] - x1, beside[i - 1]);
        minors2.step(diagonal[i] - x2, beside[i - 1]);
      }
      minors1.rescale();
      minors2.rescale();
    }
    const LaneMask above1 = minors1.changes <= -1;
    const LaneMask above2 = minors2.changes <= -2;
    high1 = above1 ? x1 : high1;
    low1 = above1 ? low1 : x1;
    high2 = above2 ? x2 : high2;
    low2 = above2 ? low2 : x2;
  }
  first = 0.5 * (low1 + high1) * norm;
  second = larger(first, 0.5 * (low2 + high2) * norm);
}

// Tridiagonal matrices as counts take them: in units of a power of two, in which the largest row
// sum and `reach` are at most 1. Entry i of the diagonals, and of the squares beside them, stands
// at place i·stride; `beside` is that of the matrices.
inline Lanes prepare_counts(const Lanes* diagonal, const Lanes* beside, Index n, Index stride,
                            Lanes reach, Lanes* scaled, Lanes* squares) {
  Lanes before{};
  for (Index i = 0; i < n; ++i) {
    const Lanes after = i + 1 < n ? magnitude(beside[i * stride]) : Lanes{};
    reach = larger(reach, magnitude(diagonal[i * stride]) + before + after);
    before = after;
  }
  // 2^-(e + 1) of a number of exponent e
  constexpr long kExponent = 0x7ffL << 52, kTwice = 2045L << 52;
  const Lanes unit = std::bit_cast<Lanes>(kTwice - (std::bit_cast<LaneMask>(reach) & kExponent));
  for (Index i = 0; i < n; ++i) {
    scaled[i * stride] = diagonal[i * stride] * unit;
    if (i + 1 == n) break;
    const Lanes entry = beside[i * stride] * unit;
    squares[i * stride] = larger(entry * entry, broadcast(kSmallestSquare));
  }
  return unit;
}

// How many eigenvalues of each matrix lie below x[k], as negative numbers, x being in the same
// units. kPoints run side by side, since each step waits for the last.
template <Index kPoints>
void count_below(const Lanes* scaled, const Lanes* squares, Index n, Index stride,
                 const Lanes (&x)[kPoints], LaneMask (&counts)[kPoints]) {
  constexpr Index kBetweenScales = 8;
  SturmMinors minors[kPoints];
#pragma GCC unroll 4
  for (Index k = 0; k < kPoints; ++k) minors[k] = SturmMinors(scaled[0] - x[k]);
  for (Index begin = 1; begin < n; begin += kBetweenScales) {
    const Index end = std::min(begin + kBetweenScales, n);
    for (Index i = begin; i < end; ++i) {
      const Lanes entry = scaled[i * stride], square = squares[(i - 1) * stride];
#pragma GCC unroll 4
      for (Index k = 0; k < kPoints; ++k) minors[k].step(entry - x[k], square);
    }
#pragma GCC unroll 4
    for (Index k = 0; k < kPoints; ++k) minors[k].rescale();
  }
#pragma GCC unroll 4
  for (Index k = 0; k < kPoints; ++k) counts[k] = minors[k].changes;
}

}  // namespace attnscope
