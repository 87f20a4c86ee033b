// SPDX-License-Identifier: MIT
#include "kernels/states/reference_influence.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "linalg/products/tiles.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// Panels whose products are made before their norms are added up, so that rows are read from the
// second-level cache for all of them.
constexpr Index kGroup = 4;

// Sums over float32 tiles have errors of about 1e-7 of the sum of their terms' norms.
constexpr double kLeastShare = 0.02;

// Each product of float32 numbers, and each number made one, is off by up to 2^-150 where it is
// below the normal ones: norms are this many times as large as all of that together.
constexpr double kSteps = 0x1p20;
constexpr double kStep = 0x1p-150;

// ‖c_R‖², c_R·c_N, ‖c_N‖² and ‖c_R + c_N‖² of one query, as far as summed.
struct Products {
  Lanes rr, rn, nn, cc;

  // Adds `size` numbers of each, whole vectors.
  void add(const double* c_r, const double* c_n, Index size) {
    for (Index k = 0; k < size; k += kPackWidth) {
      const Lanes r = load(c_r + k);
      const Lanes rest = load(c_n + k);
      const Lanes c = r + rest;
      rr += r * r;
      rn += r * rest;
      nn += rest * rest;
      cc += c * c;
    }
  }

  // Whether the norms are no smaller than a share of the sums of their terms' norms, nor than
  // `smallest` unless there are no terms.
  bool hold(double of_reference, double of_rest, double smallest) const {
    const auto holds = [smallest](Lanes squares, double terms) {
      const double norm = std::sqrt(sum_of_lanes(squares));
      return terms == 0.0 || norm >= std::max(kLeastShare * terms, smallest);
    };
    return holds(rr, of_reference) && holds(nn, of_rest) && holds(cc, of_reference + of_rest);
  }

  void measure(Index i, const Influence& out) const {
    const double squared_r = sum_of_lanes(rr);
    const double norm_r = std::sqrt(squared_r);
    const double norm_n = std::sqrt(sum_of_lanes(nn));
    const double norm = std::sqrt(sum_of_lanes(cc));
    const double across = sum_of_lanes(rn);
    out.relative_magnitude[i] = norm > 0.0 ? norm_r / norm : kNaN;
    out.directional[i] = norm > 0.0 && norm_r > 0.0
                             ? std::clamp((squared_r + across) / norm_r / norm, -1.0, 1.0)
                             : kNaN;
    if (!(norm > 0.0 && norm_n > 0.0)) {
      out.information_change[i] = kNaN;
      return;
    }
    // 1 − cos of unit vectors is half the squared distance between them. That distance is c_R/‖c‖ +
    // c_N·turn, with the difference of the norms from that of their squares: nothing of the size of
    // c cancels, however small c_R is.
    const double turn = -(squared_r + 2.0 * across) / (norm + norm_n) / norm;  // times ‖c_N‖
    const double part = norm_r / norm;
    out.information_change[i] = std::clamp(
        0.5 * (part * part + 2.0 * (across / norm / norm_n) * turn + turn * turn), 0.0, 2.0);
  }
};

}  // namespace

// The first `count` entries of a row, wide or narrow.
template <class Entry, class Float>
void put_entries(const Entry* row, Index count, Float* to) {
  Index j = 0;
  if constexpr (std::is_same_v<Float, double>) {
    for (; j + kPackWidth <= count; j += kPackWidth) store(to + j, load(row + j));
  }
  for (; j < count; ++j) to[j] = static_cast<Float>(row[j]);
}

// ‖s_j‖ of keys [0, columns).
template <class Float>
void norms_of(const StatePanels<Float>& states, Index columns, double* norms) {
  constexpr Index kWidth = Tile<Float>::kWidth;
  for (Index j = 0; j < columns; ++j) {
    Lanes squares{};
    for (Index left = 0; left < states.width; left += kWidth) {
      const Float* numbers = states.data + left * states.keys + j * kWidth;
      for_each_lane(numbers, 0, kWidth, kWidth, [&](Lanes x, Index) { squares += x * x; });
    }
    norms[j] = std::sqrt(sum_of_lanes(squares));
  }
}

// Σ_j |row[j]|·norms[j], where a whole vector of norms may be read.
template <class Float>
double sum_of_terms(const Float* row, const double* norms, Index count) {
  Lanes sum{};
  for_each_lane(row, 0, count, count,
                [&](Lanes x, Index j) { sum += magnitude(x) * load(norms + j); });
  return sum_of_lanes(sum);
}

// Whether one of the first `columns` entries of row i, of the reference or of the rest, is not 0.
template <class Scalar>
bool any_entry(const MatrixView<Scalar>& attention, Index i, Index columns, const bool* reference,
               Index stride, bool of_reference) {
  for (Index j = 0; j < columns; ++j) {
    if (reference[j * stride] == of_reference && static_cast<double>(attention(i, j)) != 0.0)
      return true;
  }
  return false;
}

template <class Float>
Index size_of_panels(Index keys, Index width) {
  return keys * in_tiles<Float>(width);
}
template Index size_of_panels<double>(Index, Index);
template Index size_of_panels<float>(Index, Index);

template <class Float>
void put_in_panels(const Float* rows, Index begin, Index end, Index keys, Index width,
                   Float* panels) {
  constexpr Index kWidth = Tile<Float>::kWidth;
  for (Index left = 0; left < width; left += kWidth) {
    Tile<Float>::pack_columns(rows + left, std::min(kWidth, width - left), width, end - begin,
                              panels + left * keys + begin * kWidth);
  }
}
template void put_in_panels(const double*, Index, Index, Index, Index, double*);
template void put_in_panels(const float*, Index, Index, Index, Index, float*);

template <class Scalar, class Float>
bool reference_influence(const MatrixView<Scalar>& attention, const Support& support,
                         const StatePanels<Float>& states, const bool* reference, Index stride,
                         Index begin, Index end, const Influence& out,
                         InfluenceWorkspace& workspace) {
  const Index n = attention.cols();
  const Index rows = end - begin;
  const Index columns = support.end(end - 1, n);
  const Index width = states.width;
  assert(states.keys >= columns);
  auto& marked = workspace.marked;
  marked.clear();
  for (Index j = 0; j < columns; ++j) {
    if (reference[j * stride]) marked.push_back(j);
  }
  const auto picks = static_cast<Index>(marked.size());

  // The rows of A, their reference columns moved to a tile of their own. Rows begin an odd number
  // of cache lines after one another, since the first-level cache holds few lines whose places
  // differ by a power of two.
  constexpr Index kLine = 64 / static_cast<Index>(sizeof(Float));
  const Index spacing = ((columns + kLine - 1) / kLine | 1) * kLine;
  auto* rest = reinterpret_cast<Float*>(workspace.attention.resize(rows * (spacing + picks)));
  Float* picked = rest + rows * spacing;
  RowReader<Scalar> reader(attention, support, workspace.rows);
  for (Index i = begin; i < end; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    const Index last = reader.end(i);
    Float* to = rest + (i - begin) * spacing;
    put_entries(row, last, to);
    std::fill(to + last, to + columns, Float(0));
    Float* pick = picked + (i - begin) * picks;
    for (const Index key : marked) {
      *pick++ = to[key];
      to[key] = Float(0);
    }
  }

  constexpr Index kWidth = Tile<Float>::kWidth;
  constexpr Index kDepth = Tile<Float>::kDepth;
  constexpr Index kWide = kGroup * kWidth;
  double* from_rest = workspace.outputs.resize(2 * rows * kWide + kDepth * kWidth);
  double* from_reference = from_rest + rows * kWide;
  auto* tile_of_marked = reinterpret_cast<Float*>(from_reference + rows * kWide);
  auto* products = reinterpret_cast<Products*>(
      workspace.products.resize(rows * static_cast<Index>(sizeof(Products) / sizeof(double))));
  std::fill(products, products + rows, Products{});
  std::fill(from_reference, from_reference + rows * kWide, 0.0);
  const bool causal = support.kind == Support::Kind::causal;
  for (Index left = 0; left < width; left += kWide) {
    const Index numbers = std::min(kWide, width - left);
    const auto panel = [&](Index c) { return states.data + (left + c) * states.keys; };
    for (Index j = 0; j < columns; j += kDepth) {
      const Index depth = std::min(kDepth, columns - j);
      for (Index c = 0; c < numbers; c += kWidth) {
        const Float* tile = panel(c) + j * kWidth;
        for (Index i = 0; i < rows; i += kTileRows) {
          const Index count = std::min(kTileRows, rows - i);
          const Index keys =
              causal ? std::min(depth, begin + support.shift + i + count - j) : depth;
          if (keys <= 0) continue;
          Tile<Float>::multiply(rest + i * spacing + j, count, spacing, tile, numbers - c, keys,
                                j > 0, from_rest + i * kWide + c, kWide);
        }
      }
    }
    for (Index r = 0; r < picks; r += kDepth) {
      const Index depth = std::min(kDepth, picks - r);
      for (Index c = 0; c < numbers; c += kWidth) {
        for (Index k = 0; k < depth; ++k)
          std::copy_n(panel(c) + marked[r + k] * kWidth, kWidth, tile_of_marked + k * kWidth);
        for (Index i = 0; i < rows; i += kTileRows) {
          Tile<Float>::multiply(picked + i * picks + r, std::min(kTileRows, rows - i), picks,
                                tile_of_marked, numbers - c, depth, r > 0,
                                from_reference + i * kWide + c, kWide);
        }
      }
    }
    for (Index i = 0; i < rows; ++i) {
      products[i].add(from_reference + i * kWide, from_rest + i * kWide,
                      in_vectors<Float>(numbers));
    }
  }
  double* norms = nullptr;
  double* marked_norms = nullptr;
  double smallest = 0.0;
  if constexpr (std::is_same_v<Float, float>) {
    const Index size = columns + picks + 2 * kPackWidth;
    norms = workspace.norms.resize(size);
    std::fill(norms, norms + size, 0.0);
    marked_norms = norms + columns + kPackWidth;
    norms_of(states, columns, norms);
    for (Index r = 0; r < picks; ++r) marked_norms[r] = norms[marked[r]];
    double all_norms = static_cast<double>(columns) * std::sqrt(static_cast<double>(width));
    for (Index j = 0; j < columns; ++j) all_norms += norms[j];
    smallest = kSteps * kStep * all_norms;
  }
  for (Index i = begin; i < end; ++i) {
    const Index self = support.position(i);
    const bool inside = 0 <= self && self < n && reference[self * stride];
    if (inside) continue;
    const Index r = i - begin;
    if (norms != nullptr) {
      const double of_reference = sum_of_terms(picked + r * picks, marked_norms, picks);
      const double of_rest = sum_of_terms(rest + r * spacing, norms, columns);
      if (!products[r].hold(of_reference, of_rest, smallest)) return false;
      if constexpr (std::is_same_v<Scalar, double>) {
        // entries too small for float32 are 0 there
        if ((of_reference == 0.0 && any_entry(attention, i, columns, reference, stride, true)) ||
            (of_rest == 0.0 && any_entry(attention, i, columns, reference, stride, false))) {
          return false;
        }
      }
    }
    products[r].measure(i, out);
  }
  return true;
}

#define ATTNSCOPE_INFLUENCE_OF(Scalar, Float)                                                    \
  template bool reference_influence(const MatrixView<Scalar>&, const Support&,                   \
                                    const StatePanels<Float>&, const bool*, Index, Index, Index, \
                                    const Influence&, InfluenceWorkspace&);
#define ATTNSCOPE_INFLUENCE(Scalar)      \
  ATTNSCOPE_INFLUENCE_OF(Scalar, double) \
  ATTNSCOPE_INFLUENCE_OF(Scalar, float)
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INFLUENCE)
#undef ATTNSCOPE_INFLUENCE
#undef ATTNSCOPE_INFLUENCE_OF

}  // namespace attnscope
