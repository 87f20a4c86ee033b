// SPDX-License-Identifier: MIT
#include "graphs/simple_laplacian.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "linalg/panels.h"

namespace attnscope {
namespace {

// One bit a lane, from the lowest.
template <class Mask>
Mask place_values() {
  using Place = std::remove_cvref_t<decltype(Mask{}[0])>;
  constexpr Index kLanes = sizeof(Mask) / sizeof(Place);
  Mask values;
  for (Index lane = 0; lane < kLanes; ++lane) values[lane] = Place{1} << lane;
  return values;
}

// Which lanes the lowest bits name.
template <class Mask>
Mask lanes_of_bits(std::uint64_t bits, Mask place_values) {
  using Place = std::remove_cvref_t<decltype(Mask{}[0])>;
  return ((static_cast<Place>(bits) - Mask{}) & place_values) != 0;
}

}  // namespace

void write_piece_vector(const std::vector<Index>& one_piece, Index order, double* vector) {
  const auto nodes = static_cast<double>(order);
  const auto piece = static_cast<double>(one_piece.size());
  std::fill(vector, vector + order, -std::sqrt(piece / (nodes * (nodes - piece))));
  for (const Index i : one_piece) vector[i] = std::sqrt((nodes - piece) / (nodes * piece));
}

void SimpleLaplacian::read(const LevelGraph& graph) {
  const Index n = graph.level.n;
  order_ = static_cast<Index>(graph.nodes.size());
  words_ = (order_ + 63) / 64;
  double* degree = degree_.resize(padded());
  std::fill(degree + order_, degree + padded(), 0.0);
  std::copy(graph.degree.begin(), graph.degree.end(), degree);
  edges_.assign(padded() * words_, 0);
  levels_.assign(padded(), 0);
  for (Index i = 0; i < order_; ++i) {
    const Level* row = graph.level.row(graph.nodes[i]);
    if (order_ < n) {
      for (Index j = 0; j < order_; ++j) levels_[j] = row[graph.nodes[j]];
      row = levels_.data();
    }
    for (Index word = 0; word < words_; ++word)
      edges_[i * words_ + word] = bits_above(row + 64 * word, graph.above);
  }
}

void SimpleLaplacian::reorder(const SimpleLaplacian& other, const std::vector<Index>& order) {
  order_ = other.order_;
  words_ = other.words_;
  double* degree = degree_.resize(padded());
  std::fill(degree + order_, degree + padded(), 0.0);
  edges_.assign(padded() * words_, 0);
  places_.resize(order.size());
  for (Index i = 0; i < order_; ++i) places_[order[i]] = i;
  for (Index i = 0; i < order_; ++i) {
    degree[i] = other.degree(order[i]);
    std::uint64_t* row = edges_.data() + i * words_;
    other.for_each_neighbour(
        order[i], [&](Index j) { row[places_[j] / 64] |= std::uint64_t{1} << (places_[j] % 64); });
  }
}

template <class Number>
void SimpleLaplacian::fill_panels(Index size, const Number* v, double lift, double sigma,
                                  Number* panels) const {
  using Shape = PanelShape<Number>;
  using Vector = typename Shape::Vector;
  using Mask = typename Shape::Places;
  constexpr Index kWidth = Shape::kWidth, kLanes = Shape::kLanes;
  const Mask places = place_values<Mask>();
  const Vector unit = broadcast(Number{1});
  const Index count = panels_of<Number>(size);
  for (Index s = 0; s < count; ++s) {
    const Index first = s * kWidth;
    Vector* row = lanes_at(panels + panel_offset<Number>(s));
    for (Index k = 0; k < first + kWidth; ++k) {
      for (Index column = first; column < first + kWidth; column += kLanes, ++row) {
        if (k >= size || column >= size) {
          *row = Vector{};
          continue;
        }
        *row = lanes_of_bits(edges_from(k, column), places) ? Vector{} : unit;
        if (v != nullptr) *row += static_cast<Number>(lift * v[k]) * *lanes_at(v + column);
        for (Index lane = size - column; lane < kLanes; ++lane) (*row)[lane] = Number{0};
      }
    }
  }
  for (Index i = 0; i < count * kWidth; ++i) {
    Number& entry = panels[panel_entry<Number>(i, i)];
    // No node touches itself, so the entry is 1 + lift·v².
    entry =
        i < size ? static_cast<Number>(static_cast<double>(entry) + degree(i) - sigma) : Number{1};
  }
}

template <Index kCount>
void SimpleLaplacian::multiply(const double* const (&vectors)[kCount],
                               double* const (&images)[kCount]) const {
  const LaneMask places = place_values<LaneMask>();
  for (Index first = 0; first < padded(); first += kPackWidth) {
    Lanes sums[kCount][kPackWidth] = {};
    for (Index column = 0; column < padded(); column += kPackWidth) {
#pragma GCC unroll 8
      for (Index r = 0; r < kPackWidth; ++r) {
        const LaneMask edges = lanes_of_bits(edges_from(first + r, column), places);
#pragma GCC unroll 2
        for (Index k = 0; k < kCount; ++k)
          sums[k][r] += edges ? *lanes_at(vectors[k] + column) : Lanes{};
      }
    }
    for (Index k = 0; k < kCount; ++k) {
      *lanes_at(images[k] + first) =
          *lanes_at(degree_.data() + first) * *lanes_at(vectors[k] + first) - row_sums(sums[k]);
    }
  }
}

template void SimpleLaplacian::fill_panels(Index, const float*, double, double, float*) const;
template void SimpleLaplacian::fill_panels(Index, const double*, double, double, double*) const;
template void SimpleLaplacian::multiply<1>(const double* const (&)[1], double* const (&)[1]) const;
template void SimpleLaplacian::multiply<2>(const double* const (&)[2], double* const (&)[2]) const;

}  // namespace attnscope
