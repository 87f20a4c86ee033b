// SPDX-License-Identifier: MIT
#include "linalg/bidiagonal.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "linalg/panels.h"
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
inline FloatLanes spread(const float& number) { return broadcast(number); }

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

// product += A·v for `count` rows of kVectors vectors from `a`, lane by lane; from the last row up,
// since the update before has just been there.
template <Index kVectors, class Vector>
void multiply(const Vector* a, Index row, Index count, const Vector* v, Vector* product) {
  Vector right[kVectors];
  for (Index j = 0; j < kVectors; ++j) right[j] = v[j];
  a += count * row;
  for (Index i = count - 1; i >= 0; --i) {
    a -= row;
    Vector even = product[i];
    Vector odd{};
#pragma GCC unroll 6
    for (Index j = 0; j < kVectors; ++j) (j % 2 == 0 ? even : odd) += a[j] * right[j];
    product[i] = even + odd;
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

// Chains of sums over one vector of numbers, each as long as the last addition takes.
template <class Number>
constexpr Index kChains = std::is_same_v<Number, double> ? 4 : kFloatsInPack;

// x·y in kChains chains.
template <class Number>
Number inner_product(const Number* x, const Number* y, Index size) {
  constexpr Index kCount = kChains<Number>;
  Number sums[kCount] = {};
  Index i = 0;
  for (; i + kCount <= size; i += kCount) {
    for (Index k = 0; k < kCount; ++k) sums[k] += x[i + k] * y[i + k];
  }
  for (; i < size; ++i) sums[0] += x[i] * y[i];
  for (Index count = kCount / 2; count > 0; count /= 2) {
    for (Index k = 0; k < count; ++k) sums[k] = sums[2 * k] + sums[2 * k + 1];
  }
  return sums[0];
}

// The same for one vector of numbers.
template <class Number>
  requires(std::is_floating_point_v<Number>)
Number reflector(Number* x, Index size, Number& tau, Number& scale) {
  const Number tail = inner_product(x + 1, x + 1, size - 1);
  const Number head = x[0];
  if (!(tail > kSmallestTail<Number>)) {
    tau = Number{0};
    scale = Number{0};
    x[0] = Number{1};
    std::fill(x + 1, x + size, Number{0});
    return head;
  }
  const Number norm = std::sqrt(head * head + tail);
  const Number beta = head > Number{0} ? -norm : norm;
  scale = Number{1} / (head - beta);
  tau = (beta - head) / beta;
  x[0] = Number{1};
  for (Index i = 1; i < size; ++i) x[i] *= scale;
  return beta;
}

// Vectors of a matrix that the passes take in one go: `width` of every row, those of row 0 from
// `first` on, rows being `row` vectors apart.
struct Block {
  Index first, row, width;
};

// Rows one after another, of a pack or of one matrix; vectors left over by whole blocks go alone.
struct Rows {
  Index row;      // vectors from one row to the next
  Index vectors;  // of a row
  static constexpr bool kAnyWidth = false;

  Block block(Index vector) const { return {vector, row, vector + kBlock <= vectors ? kBlock : 1}; }
};

// Blocks one after another, so that a pass reads memory in order; of the first that a pass takes,
// it takes the rest.
struct Panels {
  Index rows;
  Index vectors;  // of a row
  static constexpr bool kAnyWidth = true;

  Block block(Index vector) const {
    const Index begin = vector / kBlock * kBlock;
    const Index row = std::min(kBlock, vectors - begin);
    return {begin * rows + (vector - begin), row, begin + row - vector};
  }
};

// Calls visit.operator()<width>(), of layouts without kAnyWidth for a whole block or a vector.
template <bool kAnyWidth, class Visit>
void with_width(Index width, Visit&& visit) {
  if (width == kBlock) return visit.template operator()<kBlock>();
  if constexpr (kAnyWidth && kBlock > 2) {
    if constexpr (kBlock > 3) {
      if (width == 5) return visit.template operator()<5>();
      if (width == 4) return visit.template operator()<4>();
      if (width == 3) return visit.template operator()<3>();
    }
    if (width == 2) return visit.template operator()<2>();
  }
  visit.template operator()<1>();
}

// x = tau·(A·v) in rows from `first` on, A·v being what `products` sum to times `scale`, what is in
// `column` and −overlap·u.
inline void finish_product(const FloatLanes* products, const float* column, const float* u,
                           float scale, float overlap, float tau, Index first, Index n, float* x) {
  for (Index i = first / kFloatsInPack * kFloatsInPack; i < n; i += kFloatsInPack) {
    const FloatLanes along = row_sums(products + i);
    *lanes_at(x + i) = tau * (along * scale + *lanes_at(column + i) - *lanes_at(u + i) * overlap);
  }
}

// The reduction of a pack (Number: Lanes, a vector is a column) or of one matrix (Number: double or
// float, a vector is as many columns as it has lanes). Column k's step reads the matrix once: a
// block of columns that has been updated is complete, so that its part of the right reflector and,
// before it leaves the nearest cache that holds it, that part's product with the matrix follow.
// Vectors run along rows from the one that holds column k + 1: w and v are 0 in the columns before,
// so what the passes do to finished columns is nothing. `keep(i, d, e)` takes the bidiagonal's
// entries.
template <class Number, class Vector, class Layout, class Keep>
void reduce(Vector* a, const Layout& layout, Index n, AlignedBuffer& scratch, Keep&& keep) {
  constexpr Index kWidth =
      static_cast<Index>(sizeof(Vector) / sizeof(Number));  // columns of a vector
  const Index size = std::max(layout.vectors, (n + kWidth - 1) / kWidth) + 8;
  const Index columns = (n + kWidth - 1) / kWidth * kWidth;
  Vector* space = reinterpret_cast<Vector*>(lane_buffer(scratch, 7 * size + columns));
  std::fill(space, space + 7 * size + columns, Vector{});
  Number* u = reinterpret_cast<Number*>(space);
  Number* w = reinterpret_cast<Number*>(space + size);
  Number* x = reinterpret_cast<Number*>(space + 2 * size);
  Number* v = reinterpret_cast<Number*>(space + 3 * size);
  Number* un = reinterpret_cast<Number*>(space + 4 * size);
  Number* wn = reinterpret_cast<Number*>(space + 5 * size);
  Number* column = reinterpret_cast<Number*>(space + 6 * size);
  Vector* product = space + 7 * size;
  const auto lanes = [](Number* p) { return reinterpret_cast<Vector*>(p); };
  // Column k from row k on, before the update.
  const auto read_column = [&](Index k) {
    const Block block = layout.block(k / kWidth);
    const Number* from = reinterpret_cast<const Number*>(a + block.first) + k % kWidth;
    for (Index i = k; i < n; ++i) column[i] = from[i * block.row * kWidth];
  };
  read_column(0);
  for (Index k = 0; k < n; ++k) {
    for (Index i = k; i < n; ++i) un[i] = column[i] - u[i] * w[k] - x[i] * v[k];
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
    for (Index first = from; first < layout.vectors;) {
      const Block block = layout.block(first);
      with_width<Layout::kAnyWidth>(block.width, [&]<Index kVectors>() {
        update<kVectors>(a + block.first + k * block.row, block.row, n - k, u + k, x + k, un + k,
                         lanes(w) + first, lanes(v) + first, lanes(wn) + first);
        const Number* row = reinterpret_cast<const Number*>(a + block.first + k * block.row);
        const Index begin = first * kWidth;
        for (Index j = begin; j < begin + kVectors * kWidth; ++j) {
          if (j <= k) {
            wn[j] = v[j] = Number{};
          } else {
            wn[j] *= tau;
            v[j] = row[j - begin] - wn[j];
          }
        }
        if (first == from) {
          // The reflector's first entry is 1 whatever this one is.
          head = v[k + 1];
          v[k + 1] = Number{};
        }
        multiply<kVectors>(a + block.first + (k + 1) * block.row, block.row, n - k - 1,
                           lanes(v) + first, product + k + 1);
      });
      first += block.width;
    }
    v[k + 1] = head;
    Number tau_right{}, scale_right{};
    keep(k, beta, reflector(v + k + 1, n - k - 1, tau_right, scale_right));
    read_column(k + 1);
    if constexpr (std::is_same_v<Number, float>) {
      const float overlap = inner_product(wn + k + 1, v + k + 1, n - k - 1);
      finish_product(product, column, un, scale_right, overlap, tau_right, k + 1, n, x);
    } else {
      Number overlap{};
      for (Index j = k + 1; j < n; ++j) overlap += wn[j] * v[j];
      for (Index i = k + 1; i < n; ++i) {
        Number along;
        if constexpr (kWidth == 1) {
          along = product[i];
        } else {
          along = sum_of_lanes(product[i]);
        }
        x[i] = tau_right * (along * scale_right + column[i] - un[i] * overlap);
      }
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
  reduce<Lanes>(reinterpret_cast<Lanes*>(pack), Rows{bidiagonal_pack_row(n) / kPackWidth, n}, n,
                scratch, [&](Index i, const Lanes& d, const Lanes& e) {
                  std::memcpy(diagonal + i * stride, &d, sizeof d);
                  std::memcpy(superdiagonal + i * stride, &e, sizeof e);
                });
}

void bidiagonalize_float_pack(float* pack, Index n, float* diagonal, float* superdiagonal,
                              AlignedBuffer& scratch) {
  reduce<FloatLanes>(reinterpret_cast<FloatLanes*>(pack),
                     Rows{bidiagonal_pack_row(n) / kPackWidth, n}, n, scratch,
                     [&](Index i, const FloatLanes& d, const FloatLanes& e) {
                       std::memcpy(diagonal + i * kFloatsInPack, &d, sizeof d);
                       std::memcpy(superdiagonal + i * kFloatsInPack, &e, sizeof e);
                     });
}

void bidiagonalize(double* matrix, Index n, double* diagonal, double* superdiagonal, Index stride,
                   AlignedBuffer& scratch) {
  const Index vectors = bidiagonal_row(n) / kPackWidth;
  reduce<double>(reinterpret_cast<Lanes*>(matrix), Rows{vectors, vectors}, n, scratch,
                 [&](Index i, double d, double e) {
                   diagonal[i * stride] = d;
                   superdiagonal[i * stride] = e;
                 });
}

FloatPanels::FloatPanels(Index n, AlignedBuffer& buffer)
    : n_(n),
      vectors_((n + kFloatsInPack - 1) / kFloatsInPack),
      entries_(reinterpret_cast<float*>(buffer.resize(n * vectors_ * kPackWidth))) {}

void FloatPanels::set_row(Index i, const double* row, double scale) {
  for (Index first = 0; first < vectors_; first += kBlock) {
    const Index width = std::min(kBlock, vectors_ - first) * kFloatsInPack;
    const Index begin = first * kFloatsInPack;
    float* to = entries_ + begin * n_ + i * width;
    const Index end = std::min(width, n_ - begin);
    for (Index j = 0; j < end; ++j) to[j] = static_cast<float>(row[begin + j] * scale);
    std::fill(to + end, to + width, 0.0F);
  }
}

void FloatPanels::bidiagonalize(double* diagonal, double* superdiagonal, Index stride,
                                AlignedBuffer& scratch) {
  reduce<float>(reinterpret_cast<FloatLanes*>(entries_), Panels{n_, vectors_}, n_, scratch,
                [&](Index i, float d, float e) {
                  diagonal[i * stride] = static_cast<double>(d);
                  superdiagonal[i * stride] = static_cast<double>(e);
                });
}

}  // namespace attnscope
