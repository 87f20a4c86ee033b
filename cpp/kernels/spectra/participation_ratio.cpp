// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "linalg/eigenvalues.h"
#include "linalg/gram.h"
#include "matrix/padded_vectors.h"
#include "matrix/rows.h"
#include "matrix/square_factor.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsMap = Eigen::Map<Rows>;

// (Σx)² / Σx² of `count` energies, in [1, count] where no energy is negative: rounding alone does
// not leave that range.
double ratio(double sum, double sum_of_squares, Index count) {
  if (sum_of_squares == 0.0) return kNaN;
  constexpr double kRounding = 1e-9;
  const double value = sum * sum / sum_of_squares;
  const auto most = static_cast<double>(count);
  if (value > most && value < most * (1.0 + kRounding)) return most;
  return value < 1.0 && value > 1.0 - kRounding ? 1.0 : value;
}

template <class Scalar>
RowsMap widened(const MatrixView<Scalar>& matrix, ParticipationRatioWorkspace& workspace) {
  const Index n = matrix.rows();
  double* data = workspace.matrix.resize(n * n);
  // Every ratio here is the same for c·A, so the scale that keeps powers in range needs no undoing.
  widen(matrix, data, n);
  return RowsMap(data, n, n);
}

// Columns of A side by side, one row after another, in strips: their products are sums over rows,
// which are in order in memory, and of a causal map the rows above a strip are 0. A product of two
// groups of kPackWidth columns is kPackWidth vectors.
constexpr Index kStripVectors = kPackWidth == 2 ? 4 : kPackWidth == 4 ? 3 : 2;
constexpr Index kStrip = kStripVectors * kPackWidth;
// Rows whose products are added up in one go, whole diagonal squares of a causal map: the part of a
// strip that they are stays in the first-level cache while it is multiplied.
constexpr Index kDepth = 16 * kStrip;
// Strips that are multiplied by one group while their parts are in the second-level cache, of
// `count` in all. More of them read the others less often, which a matrix of 2,048 columns gains a
// twentieth by; fewer leave more parts to be shared out.
Index strips_together(Index count) { return count > 64 ? 16 : 8; }
// Vectors that the products of a group with a strip, and of two strips, take.
constexpr Index kGroupSums = kPackWidth * kStripVectors;
constexpr Index kPairSums = kStripVectors * kGroupSums;

// Numbers from a strip to the next: more than n rows where only parts of strips are multiplied
// together, so that these do not share the same places of a cache.
Index strip_spacing(Index n) { return (n > kDepth ? n + kDepth + 1 : n) * kStrip; }

// The squares of AᵀA: of the products of a column with itself and the columns beside it in its
// diagonal square, and of those that stand for their mirror images too.
struct GramSquares {
  Lanes once{};
  Lanes twice{};
};

// What the rows before had left of the products of a group with a strip, and will find there again.
struct PartialProducts {
  Lanes* sums;  // of all groups and strips; nullptr where no rows come before or after
  Index at;     // where those of this group and strip begin, [kPackWidth][kStripVectors]
  bool first;   // no rows were before
  bool last;    // none come after
};

// Calls visit with the number of vectors of a strip that hold columns, as a constant.
template <Index kCount = kStripVectors, class Visit>
void with_vectors(Index columns, Visit&& visit) {
  if constexpr (kCount > 1) {
    if (columns <= (kCount - 1) * kPackWidth) return with_vectors<kCount - 1>(columns, visit);
  }
  visit(std::integral_constant<Index, kCount>{});
}

// Adds up the products of a group of columns with vectors [kFirst, kEnd) of a strip, and after the
// last rows their squares; `diagonal`: the first of these holds the group itself.
template <Index kFirst, Index kEnd>
[[gnu::always_inline]] inline void add_products(const double* group, const double* strip,
                                                Index rows, bool diagonal,
                                                const PartialProducts& partial,
                                                GramSquares& squares) {
  constexpr Index kVectors = kEnd - kFirst;
  Lanes sums[kPackWidth][kVectors] = {};
  if (!partial.first) {
    const Lanes* from_before = partial.sums + partial.at;
#pragma GCC unroll 8
    for (Index r = 0; r < kPackWidth; ++r) {
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) sums[r][v] = from_before[r * kStripVectors + v];
    }
  }
  for (Index k = 0; k < rows; ++k) {
    Lanes x[kVectors];
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) x[v] = lanes_at(strip + k * kStrip)[kFirst + v];
#pragma GCC unroll 8
    for (Index r = 0; r < kPackWidth; ++r) {
      const Lanes factor = broadcast(group[k * kStrip + r]);
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) sums[r][v] += factor * x[v];
    }
  }
  if (!partial.last) {
    Lanes* for_next = partial.sums + partial.at;
#pragma GCC unroll 8
    for (Index r = 0; r < kPackWidth; ++r) {
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) for_next[r * kStripVectors + v] = sums[r][v];
    }
    return;
  }
  Lanes parts[kVectors] = {};
#pragma GCC unroll 8
  for (Index r = 0; r < kPackWidth; ++r) {
#pragma GCC unroll 4
    for (Index v = 0; v < kVectors; ++v) parts[v] += sums[r][v] * sums[r][v];
  }
  (diagonal ? squares.once : squares.twice) += parts[0];
#pragma GCC unroll 4
  for (Index v = 1; v < kVectors; ++v) squares.twice += parts[v];
}

// Products of a strip's groups of columns, from kFirst on, with themselves and those behind them;
// `triangle`: these rows begin with the strip's diagonal square of a causal map.
template <Index kFirst, Index kEnd>
void add_diagonal(const double* strip, Index rows, bool triangle, PartialProducts partial,
                  GramSquares& squares) {
  const Index zeros = triangle ? std::min(rows, kFirst * kPackWidth) : 0;
  const double* from = strip + zeros * kStrip;
  add_products<kFirst, kEnd>(from + kFirst * kPackWidth, from, rows - zeros, true, partial,
                             squares);
  partial.at += kPackWidth * kStripVectors;
  if constexpr (kFirst + 1 < kEnd)
    add_diagonal<kFirst + 1, kEnd>(strip, rows, triangle, partial, squares);
}

// Calls work(part, worker) for each part, in turn where they are not shared out.
template <class Work>
void for_each_part(Index parts, const SharedWork& shared, Work&& work) {
  if (shared.share) return shared.share(parts, work);
  for (Index part = 0; part < parts; ++part) work(part, 0);
}

// The sum of sum_of_part(part, worker) over all parts, in their order however they are shared out:
// from the last on, where later parts take longer, so that workers end at about the same time.
template <class SumOfPart>
double shared_sum(Index parts, const SharedWork& shared, SumOfPart&& sum_of_part) {
  double sum = 0.0;
  if (!shared.share) {
    for (Index part = 0; part < parts; ++part) sum += sum_of_part(part, 0);
    return sum;
  }
  std::vector<double> sums(parts);
  shared.share(parts, [&](Index shared_part, int worker) {
    const Index part = parts - 1 - shared_part;
    sums[part] = sum_of_part(part, worker);
  });
  for (const double of_part : sums) sum += of_part;
  return sum;
}

// The part of ‖AᵀA‖_F² in the products of the strips from `from` on, `together` of them, with
// themselves and those before; `sums`: room for what one depth of rows leaves to the next.
double squares_of_strips(const double* strips, Index n, bool causal, Index from, Index together,
                         Lanes* sums) {
  GramSquares squares;
  const Index spacing = strip_spacing(n);
  const Index end = std::min((n + kStrip - 1) / kStrip, from + together);
  for (Index begin = causal ? from * kStrip / kDepth * kDepth : 0; begin < n; begin += kDepth) {
    const Index rows_end = std::min(n, begin + kDepth);
    for (Index s = 0; s < end; ++s) {
      for (Index t = std::max(from, s); t < end; ++t) {
        const Index top = causal ? t * kStrip : 0;
        const Index first = std::max(begin, top);
        if (first >= rows_end) continue;
        const double* left = strips + s * spacing + first * kStrip;
        const double* right = strips + t * spacing + first * kStrip;
        PartialProducts partial{sums, (s * together + t - from) * kPairSums, begin <= top,
                                rows_end == n};
        with_vectors(n - t * kStrip, [&](auto vectors) {
          if (s == t) {
            return add_diagonal<0, vectors>(right, rows_end - first, causal && begin <= top,
                                            partial, squares);
          }
          for (Index group = 0; group < kStrip; group += kPackWidth) {
            add_products<0, vectors>(left + group, right, rows_end - first, false, partial,
                                     squares);
            partial.at += kGroupSums;
          }
        });
      }
    }
  }
  return sum_of_lanes(squares.once) + 2.0 * sum_of_lanes(squares.twice);
}

// ‖AᵀA‖_F² of n rows in strips; `causal`: entries above the diagonal are 0, and of those only the
// ones within a diagonal square of kStrip are read. Cost n³ operations, n³/3 when causal.
double gram_squares(const double* strips, Index n, bool causal, AlignedBuffer& memory,
                    const SharedWork& shared) {
  const Index count = (n + kStrip - 1) / kStrip;
  const Index together = strips_together(count);
  const Index of_worker = n > kDepth ? count * together * kPairSums : 0;
  Lanes* sums = of_worker > 0 ? lane_buffer(memory, shared.workers * of_worker) : nullptr;
  return shared_sum((count + together - 1) / together, shared, [&](Index part, int worker) {
    Lanes* of_part = sums == nullptr ? nullptr : sums + worker * of_worker;
    return squares_of_strips(strips, n, causal, part * together, together, of_part);
  });
}

// Rows that are put in strips in one go, where these are shared out: enough that handing them out
// costs nothing, and of memory that is fresh from the system each worker gets pages of its own.
constexpr Index kRowsOfPart = 128;
Index parts_of_rows(Index n) { return (n + kRowsOfPart - 1) / kRowsOfPart; }

// Lanes of Σ x², several chains of them, since each sum waits for the last.
struct SquareSums {
  Lanes chains[kStripVectors]{};

  double sum() const {
    Lanes all = chains[0];
    for (Index v = 1; v < kStripVectors; ++v) all += chains[v];
    return sum_of_lanes(all);
  }
};

// Puts rows [first, last) of n contiguous entries, of which `rows` points to the first,
// `row_stride` apart, times `scale` in strips, with zeros behind a row up to the end of its last
// strip; of a causal map rows end with the strip of their diagonal, because rows of many lengths
// cost more than the zeros in them.
template <class Entry>
void put_rows(const Entry* rows, Index row_stride, Index first, Index last, Index n, bool causal,
              double scale, double* strips, SquareSums& sums) {
  const Index spacing = strip_spacing(n);
  Lanes squares[kStripVectors];
  std::copy_n(sums.chains, kStripVectors, squares);
  for (Index i = first; i < last; ++i) {
    const Entry* row = rows + (i - first) * row_stride;
    const Index end = causal ? std::min(n, (i / kStrip + 1) * kStrip) : n;
    double* to = strips + i * kStrip;
    Index j = 0;
    for (; j + kStrip <= end; j += kStrip, to += spacing) {
#pragma GCC unroll 4
      for (Index v = 0; v < kStripVectors; ++v) {
        const Lanes x = load(row + j + v * kPackWidth) * scale;
        store(to + v * kPackWidth, x);
        squares[v] += x * x;
      }
    }
#pragma GCC unroll 4
    for (Index v = 0; v < kStripVectors; ++v) {
      const Index left = end - j - v * kPackWidth;
      if (j >= end) break;
      const Lanes x = load_head(row + j + v * kPackWidth, std::min(left, kPackWidth), left) * scale;
      store(to + v * kPackWidth, x);
      squares[0] += x * x;
    }
  }
  std::copy_n(squares, kStripVectors, sums.chains);
}

// Strips of float32 columns, as above.
constexpr Index kFloats = 2 * kPackWidth;
constexpr Index kFloatStrip = kStripVectors * kFloats;

// Numbers of float32 strips that are multiplied by one group while they are in the second-level
// cache.
constexpr Index kFloatRoom = Index{1} << 16;

// Rows whose products are added up in float32. Of numbers of one sign such a sum has a relative
// error of at most as many roundings, 4e-6, and the sum of squares of such sums twice that.
constexpr Index kChain = 64;

// Rows from which products in float32 are faster than those in float64, where half of a causal
// map's are left out in smaller squares (measured with AVX-512).
constexpr Index kFewestFast = 96;
constexpr Index kFewestFastCausal = 192;

// The squares of the products of a group of kPackWidth columns with kVectors vectors of a strip.
template <Index kVectors>
[[gnu::noinline]] double float_squares(const float* group, const float* strip, Index rows) {
  constexpr Index kColumns = kVectors * kFloats;
  alignas(64) double totals[kPackWidth * kColumns] = {};
  for (Index from = 0; from < rows; from += kChain) {
    FloatVector sums[kPackWidth][kVectors] = {};
    const Index end = std::min(rows, from + kChain);
    for (Index k = from; k < end; ++k) {
      FloatVector x[kVectors];
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v)
        x[v] = vector_at<FloatVector>(strip + k * kFloatStrip + v * kFloats);
#pragma GCC unroll 8
      for (Index r = 0; r < kPackWidth; ++r) {
        const float factor = group[k * kFloatStrip + r];
#pragma GCC unroll 4
        for (Index v = 0; v < kVectors; ++v) sums[r][v] += x[v] * factor;
      }
    }
    alignas(64) float parts[kPackWidth * kColumns];
#pragma GCC unroll 8
    for (Index r = 0; r < kPackWidth; ++r) {
#pragma GCC unroll 4
      for (Index v = 0; v < kVectors; ++v) put(parts + r * kColumns + v * kFloats, sums[r][v]);
    }
    for (Index k = 0; k < kPackWidth * kColumns; k += kPackWidth)
      store(totals + k, load(totals + k) + load(parts + k));
  }
  Lanes squares{};
  for (Index k = 0; k < kPackWidth * kColumns; k += kPackWidth)
    squares += load(totals + k) * load(totals + k);
  return sum_of_lanes(squares);
}

// ‖AᵀA‖_F² of n float32 rows in strips; `causal`: as in gram_squares.
double float_gram_squares(const float* strips, Index n, bool causal, const SharedWork& shared) {
  const Index count = (n + kFloatStrip - 1) / kFloatStrip;
  const Index together = std::max<Index>(1, kFloatRoom / (n * kFloatStrip));
  const auto squares_of_strips = [&](Index part, int) {
    double once = 0.0;
    double twice = 0.0;
    const Index from = part * together;
    const Index end = std::min(count, from + together);
    for (Index s = 0; s < end; ++s) {
      for (Index t = std::max(from, s); t < end; ++t) {
        const Index first = causal ? t * kFloatStrip : 0;
        const float* left = strips + (s * n + first) * kFloatStrip;
        const float* right = strips + (t * n + first) * kFloatStrip;
        const Index vectors = (std::min(n - t * kFloatStrip, kFloatStrip) + kFloats - 1) / kFloats;
        const Index columns = std::min(n - s * kFloatStrip, kFloatStrip);
        for (Index group = 0; group < columns; group += kPackWidth) {
          with_vectors(vectors * kPackWidth, [&](auto size) {
            (s == t ? once : twice) += float_squares<size>(left + group, right, n - first);
          });
        }
      }
    }
    return once + 2.0 * twice;
  };
  return shared_sum((count + together - 1) / together, shared, squares_of_strips);
}

// What a row of float32 strips was made of.
struct FloatRow {
  Lanes squares{};
  Lanes largest{};
  Lanes smallest{};
};

// Puts the first `end` entries of a row, and zeros up to the end of their strip, times `scale`.
void put_float_row(const double* row, Index end, double scale, float* to, Index step,
                   FloatRow& numbers) {
  for (Index j = 0; j < end; j += kFloatStrip, to += step) {
    for (Index k = 0; k < kFloatStrip; k += kPackWidth) {
      const Lanes x = load(row + j + k) * scale;
      for (Index lane = 0; lane < kPackWidth; ++lane) to[k + lane] = static_cast<float>(x[lane]);
      numbers.squares += x * x;
      numbers.largest = larger(numbers.largest, magnitude(x));
      numbers.smallest = smaller(numbers.smallest, x);
    }
  }
}

}  // namespace

template <class Scalar>
double participation_ratio_singular(const MatrixView<Scalar>& matrix,
                                    ParticipationRatioWorkspace& workspace,
                                    const SharedWork& shared) {
  if (matrix.rows() != matrix.cols()) {
    const Index r = std::min(matrix.rows(), matrix.cols());
    double* rectangle = workspace.rectangle.resize(matrix.rows() * matrix.cols());
    widen(matrix, rectangle, matrix.cols());
    double* factor = workspace.factor.resize(r * r);
    square_factor(rectangle, matrix.rows(), matrix.cols(), factor);
    return participation_ratio_singular(matrix_view(static_cast<const double*>(factor), r, r, 1),
                                        workspace, shared);
  }
  const Index n = matrix.rows();
  const Index width = (n + kStrip - 1) / kStrip * kStrip;
  const Index spacing = strip_spacing(n);
  double* strips = workspace.matrix.resize(width / kStrip * spacing);
  const bool causal = is_causal(matrix);
  const bool contiguous = matrix.innerStride() == 1;
  double* rows = contiguous ? nullptr : workspace.row.resize(shared.workers * width);
  const auto fill = [&](double scale) {
    return shared_sum(parts_of_rows(n), shared, [&](Index part, int worker) {
      const Index first = part * kRowsOfPart;
      const Index last = std::min(n, first + kRowsOfPart);
      SquareSums sums;
      if (contiguous) {
        put_rows(matrix.data() + first * matrix.outerStride(), matrix.outerStride(), first, last, n,
                 causal, scale, strips, sums);
        return sums.sum();
      }
      double* row = rows + worker * width;
      for (Index i = first; i < last; ++i) {
        widen_row(matrix, i, n, row);
        put_rows(row, n, i, i + 1, n, causal, scale, strips, sums);
      }
      return sums.sum();
    });
  };
  double squares = fill(1.0);
  // Where neither they nor fourth powers can have left float64's range the largest entry says no
  // more: it is at most their root, and at least that over n.
  if (!(squares > 1e-50 && squares < 1e58)) {
    double largest = 0.0;
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < n; ++j)
        largest = std::max(largest, std::abs(static_cast<double>(matrix(i, j))));
    }
    if (const double scale = safe_scale(largest); scale != 1.0) squares = fill(scale);
  }
  return ratio(squares, gram_squares(strips, n, causal, workspace.gram, shared), n);
}

template <class Scalar>
bool fast_participation_ratio(const MatrixView<Scalar>& matrix, double* out,
                              ParticipationRatioWorkspace& workspace, const SharedWork& shared) {
  if (matrix.rows() != matrix.cols()) return false;
  const Index n = matrix.rows();
  const bool causal = n >= kFewestFast && is_causal(matrix);
  if (n < (causal ? kFewestFastCausal : kFewestFast)) {
    *out = participation_ratio_singular(matrix, workspace, shared);
    return true;
  }
  const Index width = (n + kFloatStrip - 1) / kFloatStrip * kFloatStrip;
  double* rows = workspace.row.resize(shared.workers * width);
  auto* strips = reinterpret_cast<float*>(workspace.matrix.resize((n * width + 1) / 2));
  std::fill(rows, rows + shared.workers * width, 0.0);
  std::vector<FloatRow> of_parts(parts_of_rows(n));
  const auto fill = [&](double scale) {
    for_each_part(parts_of_rows(n), shared, [&](Index part, int worker) {
      FloatRow numbers;
      double* row = rows + worker * width;
      for (Index i = part * kRowsOfPart; i < std::min(n, (part + 1) * kRowsOfPart); ++i) {
        const Index end = causal ? std::min(n, (i / kFloatStrip + 1) * kFloatStrip) : n;
        widen_row(matrix, i, end, row);
        put_float_row(row, end, scale, strips + i * kFloatStrip, n * kFloatStrip, numbers);
      }
      of_parts[part] = numbers;
    });
    FloatRow numbers;
    for (const FloatRow& of_part : of_parts) {
      numbers.squares += of_part.squares;
      numbers.largest = larger(numbers.largest, of_part.largest);
      numbers.smallest = smaller(numbers.smallest, of_part.smallest);
    }
    return numbers;
  };
  FloatRow numbers = fill(1.0);
  double largest = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) {
    if (numbers.smallest[lane] < 0.0) return false;
    largest = std::max(largest, numbers.largest[lane]);
  }
  // Squares of float32 numbers that begin far from 1 would end beyond its range.
  if (largest != 0.0 && (largest < 0.1 || largest > 10.0)) numbers = fill(unit_power(largest));
  const double squares = float_gram_squares(strips, n, causal, shared);
  const double value = ratio(sum_of_lanes(numbers.squares), squares, n);
  // Rounding may leave the range, which ends where all energy is in one direction or in equal ones.
  *out = std::clamp(value, 1.0, static_cast<double>(n));
  return true;
}

template <class Scalar>
double participation_ratio_eigen(const MatrixView<Scalar>& matrix,
                                 ParticipationRatioWorkspace& workspace) {
  const RowsMap a = widened(matrix, workspace);
  const Index n = matrix.rows();
  double sum = 0.0;
  double squares = 0.0;
  const auto add = [&](double magnitude) {
    sum += magnitude;
    squares += magnitude * magnitude;
  };
  if (n == 1 || is_causal(matrix)) {
    for (Index i = 0; i < n; ++i) add(std::abs(a(i, i)));
    return ratio(sum, squares, n);
  }
  Eigen::VectorXd magnitudes;
  if (!eigenvalue_magnitudes(a, magnitudes)) {
    throw std::runtime_error("participation_ratio: the eigenvalues of a matrix did not converge");
  }
  for (Index i = 0; i < n; ++i) add(magnitudes[i]);
  return ratio(sum, squares, n);
}

template <class Scalar>
double participation_ratio_laplacian(const MatrixView<Scalar>& matrix,
                                     ParticipationRatioWorkspace& workspace) {
  const RowsMap a = widened(matrix, workspace);
  const Index n = matrix.rows();
  double trace = 0.0;
  double squares = 0.0;
  for (Index i = 0; i < n; ++i) {
    double degree = 0.0;
    for (Index j = 0; j < n; ++j) {
      if (j == i) continue;
      const double weight = 0.5 * (a(i, j) + a(j, i));
      degree += weight;
      squares += weight * weight;
    }
    trace += degree;
    squares += degree * degree;
  }
  return ratio(trace, squares, n - 1);
}

ATTNSCOPE_COMPILE(participation_ratio_singular);
ATTNSCOPE_COMPILE(fast_participation_ratio);
ATTNSCOPE_COMPILE(participation_ratio_eigen);
ATTNSCOPE_COMPILE(participation_ratio_laplacian);

}  // namespace attnscope
