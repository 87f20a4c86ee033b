// SPDX-License-Identifier: MIT
#include "kernels/states/reference_influence.h"

#include <algorithm>
#include <cmath>

#include "matrix/row_products.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// Tiles that are packed together, so that whole cache lines of the states are used.
constexpr Index kGroup = 4;

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

template <class Scalar>
void reference_influence(const MatrixView<Scalar>& attention, const Support& support,
                         const double* states, Index width, const bool* reference, Index stride,
                         Index begin, Index end, const Influence& out,
                         InfluenceWorkspace& workspace) {
  const Index n = attention.cols();
  const Index rows = end - begin;
  const Index columns = support.end(end - 1, n);
  auto& marked = workspace.marked;
  marked.clear();
  for (Index j = 0; j < columns; ++j) {
    if (reference[j * stride]) marked.push_back(j);
  }
  const auto picks = static_cast<Index>(marked.size());

  // The rows of A in float64, its reference columns moved to a tile of their own.
  double* rest = workspace.attention.resize(rows * (columns + picks));
  double* picked = rest + rows * columns;
  RowReader<Scalar> reader(attention, support, workspace.rows);
  for (Index i = begin; i < end; ++i) {
    const Wide<Scalar>* row = reader.row(i);
    const Index last = reader.end(i);
    double* to = rest + (i - begin) * columns;
    Index j = 0;
    for (; j + kPackWidth <= last; j += kPackWidth) store(to + j, load(row + j));
    for (; j < last; ++j) to[j] = static_cast<double>(row[j]);
    std::fill(to + last, to + columns, 0.0);
    double* pick = picked + (i - begin) * picks;
    for (const Index key : marked) {
      *pick++ = to[key];
      to[key] = 0.0;
    }
  }

  constexpr Index kWide = kGroup * kTileWidth;
  double* from_rest = workspace.outputs.resize(2 * rows * kWide + kTileDepth * kWide);
  double* from_reference = from_rest + rows * kWide;
  double* tiles = from_reference + rows * kWide;
  auto* products = reinterpret_cast<Products*>(
      workspace.products.resize(rows * static_cast<Index>(sizeof(Products) / sizeof(double))));
  std::fill(products, products + rows, Products{});
  std::fill(from_reference, from_reference + rows * kWide, 0.0);
  const bool causal = support.kind == Support::Kind::causal;
  for (Index left = 0; left < width; left += kWide) {
    const Index here = std::min(kWide, width - left);
    const auto pack = [&](Index key, Index depth, Index at) {
      for (Index c = 0; c < here; c += kTileWidth) {
        pack_columns(states + key * width + left + c, std::min(kTileWidth, here - c), width, depth,
                     tiles + c * kTileDepth + at * kTileWidth);
      }
    };
    for (Index j = 0; j < columns; j += kTileDepth) {
      const Index depth = std::min(kTileDepth, columns - j);
      pack(j, depth, 0);
      for (Index c = 0; c < here; c += kTileWidth) {
        for (Index i = 0; i < rows; i += kTileRows) {
          const Index count = std::min(kTileRows, rows - i);
          const Index seen =
              causal ? std::min(depth, begin + support.shift + i + count - j) : depth;
          if (seen <= 0) continue;
          multiply_tile(rest + i * columns + j, count, columns, tiles + c * kTileDepth, seen, j > 0,
                        from_rest + i * kWide + c, kWide);
        }
      }
    }
    for (Index r = 0; r < picks; r += kTileDepth) {
      const Index depth = std::min(kTileDepth, picks - r);
      for (Index k = 0; k < depth; ++k) pack(marked[r + k], 1, k);
      for (Index c = 0; c < here; c += kTileWidth) {
        for (Index i = 0; i < rows; i += kTileRows) {
          multiply_tile(picked + i * picks + r, std::min(kTileRows, rows - i), picks,
                        tiles + c * kTileDepth, depth, r > 0, from_reference + i * kWide + c,
                        kWide);
        }
      }
    }
    for (Index i = 0; i < rows; ++i) {
      products[i].add(from_reference + i * kWide, from_rest + i * kWide, whole_tiles(here));
    }
  }
  for (Index i = begin; i < end; ++i) {
    const Index own = support.position(i);
    const bool inside = 0 <= own && own < n && reference[own * stride];
    if (!inside) products[i - begin].measure(i, out);
  }
}

ATTNSCOPE_COMPILE(reference_influence);

}  // namespace attnscope
