// SPDX-License-Identifier: MIT
#include "kernels/answers/prompt_divergence.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "homology/similarity_square.h"
#include "matrix/matrix_view.h"
#include "matrix/partial_map.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

// Rows that are looked at together: few enough to stay in the cache until they are used.
constexpr Index kBand = 16;

template <class Float>
constexpr Float kNothing = -std::numeric_limits<Float>::infinity();

template <class Float>
using FloatsOf = typename VectorOf<Float>::Floats;

template <class Float>
Float largest_lane(FloatsOf<Float> lanes) {
  Float entries[kLanes<Float>];
  put(entries, lanes);
  for (std::size_t half = kLanes<Float> / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) {
      entries[k] = entries[k] > entries[k + half] ? entries[k] : entries[k + half];
    }
  }
  return entries[0];
}

template <class Float>
Float largest_entry(const Float* row, std::size_t end) {
  constexpr std::size_t kWidth = kLanes<Float>;
  Float most = kNothing<Float>;
  std::size_t j = 0;
  if (end >= kWidth) {
    FloatsOf<Float> lanes = vector_at<FloatsOf<Float>>(row);
    for (j = kWidth; j + kWidth <= end; j += kWidth) {
      const auto entries = vector_at<FloatsOf<Float>>(row + j);
      lanes = entries > lanes ? entries : lanes;
    }
    most = largest_lane<Float>(lanes);
  }
  for (; j < end; ++j) most = std::max(most, row[j]);
  return most;
}

// The rows of a map as a tree over prompt and answer needs them.
template <class Scalar>
class SimilarityReader {
 public:
  using Float = Wide<Scalar>;

  SimilarityReader(const MatrixView<Scalar>& attention, const Support& support, Index start,
                   Index stop, RowScratch& scratch, PromptGraph<Float>& graph)
      : reader_(attention, support, scratch),
        start_(start),
        stop_(stop),
        is_copied_(!reader_.in_place() || support.kind != Support::Kind::full),
        graph_(graph) {
    const auto r = static_cast<std::size_t>(stop - start);
    graph.best.assign(r, kNothing<Float>);
    if (is_copied_) graph.rows.assign(r * r, Float(0));
    if (!is_copied_) {
      rows_ = reader_.row(start) + start;
      row_stride_ = static_cast<std::size_t>(attention.outerStride());
    }
  }

  // What a query of the prompt gives the answer.
  void add_prompt_row(Index i) {
    const Float* row = reader_.row(i) + start_;
    Float* best = graph_.best.data();
    for (Index k = 0; k < stop_ - start_; ++k) best[k] = row[k] > best[k] ? row[k] : best[k];
  }

  // The queries of the prompt give the answer exactly 0.
  void add_zeros() {
    for (Float& similarity : graph_.best) similarity = std::max(similarity, Float(0));
  }

  void add_answer_row(Index i) {
    const auto r = static_cast<std::size_t>(stop_ - start_);
    const auto at = static_cast<std::size_t>(i - start_);
    const Float* row = reader_.row(i);
    Float& best = graph_.best[at];
    best = std::max(best, largest_entry(row, static_cast<std::size_t>(start_)));
    if (!is_copied_) return;
    const Index end = std::min(stop_, reader_.end(i));
    std::copy(row + start_, row + std::max(start_, end), graph_.rows.data() + at * r);
  }

  // Similarities of all pairs of the answer's tokens, and those to the prompt, capped at 1.
  void finish(bool lower) {
    const auto r = static_cast<std::size_t>(stop_ - start_);
    const std::size_t stride = square_stride(r);
    graph_.square.resize(round_to_tiles(r) * stride);
    fill_similarity_square(
        is_copied_ ? graph_.rows.data() : rows_, r, is_copied_ ? r : row_stride_, lower, stride,
        [](auto a, auto b) { return a > b ? a : b; }, graph_.square.data());
    for (Float& similarity : graph_.best) similarity = std::min(similarity, Float(1));
  }

 private:
  RowReader<Scalar> reader_;
  Index start_;
  Index stop_;
  bool is_copied_;
  PromptGraph<Float>& graph_;
  const Float* rows_ = nullptr;  // the answer's block where it is read in place
  std::size_t row_stride_ = 0;
};

// Reads the map once and fills `graph`; false where an entry is not finite.
template <class Scalar>
bool read_similarities(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
                       const Support& support, Index start, Index stop, RowScratch& scratch,
                       PromptGraph<Wide<Scalar>>& graph) {
  const Index n = attention.rows();
  const Support entries = find_support ? Support{} : support;
  const bool by_rows = lines_are_rows(attention);
  MatrixReading reading{true, find_support && n >= 2};
  if (!by_rows) {
    Support judged = entries;
    if (!read_partial_map(attention, first_row, find_support, judged, scratch)) return false;
    reading.causal = judged.kind == Support::Kind::causal;
  }
  const bool is_zero = entries.kind == Support::Kind::causal || first_row > 0;
  SimilarityReader<Scalar> reader(attention, entries, start, stop, scratch, graph);
  for (Index band = first_row; band < n; band += kBand) {
    const Index end = std::min(n, band + kBand);
    if (by_rows) read_lines(attention, band, end, reading);
    if (!reading.finite) return false;
    if (is_zero || reading.causal) {
      if (band < start) reader.add_zeros();
    } else {
      for (Index i = band; i < std::min(end, start); ++i) reader.add_prompt_row(i);
    }
    for (Index i = std::max(band, start); i < std::min(end, stop); ++i) reader.add_answer_row(i);
  }
  if (first_row >= start && is_zero) reader.add_zeros();
  reader.finish(entries.kind == Support::Kind::causal || reading.causal);
  return true;
}

// Grows the tree from the prompt; the distances in the order of growth add up.
template <class Float>
double grow_tree(std::size_t r, PromptGraph<Float>& graph) {
  using Floats = FloatsOf<Float>;
  using Numbers = typename VectorOf<Float>::Numbers;
  constexpr std::size_t kWidth = kLanes<Float>;
  const std::size_t width = (r + kWidth - 1) / kWidth * kWidth;
  const std::size_t stride = square_stride(r);
  graph.best.resize(width, kNothing<Float>);
  graph.cap.assign(width, kNothing<Float>);
  std::fill_n(graph.cap.begin(), r, -kNothing<Float>);
  Float* best = graph.best.data();
  Float* cap = graph.cap.data();
  double total = 0.0;
  Float nearest = largest_entry(best, width);
  for (std::size_t step = 1;; ++step) {
    total += 1.0 - static_cast<double>(nearest);
    if (step == r) return total;
    std::size_t vertex = 0;
    for (std::size_t j = 0; j < width; j += kWidth) {
      // Named, because clang's comparison of doubles gives a vector of another whole number.
      const Numbers equal = vector_at<Floats>(best + j) == nearest;
      const unsigned bits = lane_bits(equal);
      if (bits == 0) continue;
      vertex = j + static_cast<std::size_t>(std::countr_zero(bits));
      break;
    }
    cap[vertex] = kNothing<Float>;
    best[vertex] = kNothing<Float>;
    const Float* row = graph.square.data() + vertex * stride;
    Floats largest = kNothing<Float> - Floats{};
    for (std::size_t j = 0; j < width; j += kWidth) {
      const auto limit = vector_at<Floats>(cap + j);
      const auto read = vector_at<Floats>(row + j);
      const auto old = vector_at<Floats>(best + j);
      const Floats similarity = read < limit ? read : limit;
      const Floats better = similarity > old ? similarity : old;
      put(best + j, better);
      largest = better > largest ? better : largest;
    }
    nearest = largest_lane<Float>(largest);
  }
}

}  // namespace

template <class Scalar>
bool prompt_divergence(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
                       const Support& support, Index start, Index stop, PromptDivergence& out,
                       PromptWorkspace& workspace) {
  if (start == 0) {
    Support entries = find_support ? Support{} : support;
    if (!read_partial_map(attention, first_row, false, entries, workspace.rows)) return false;
    out = {kNaN, kNaN, kNaN};
    return true;
  }
  PromptGraph<Wide<Scalar>>& graph = workspace.graph(Wide<Scalar>{});
  if (!read_similarities(attention, first_row, find_support, support, start, stop, workspace.rows,
                         graph)) {
    return false;
  }
  const auto r = static_cast<std::size_t>(stop - start);
  const auto tokens = static_cast<double>(r);
  out.star = 0.0;
  for (const auto similarity : graph.best) out.star += 1.0 - static_cast<double>(similarity);
  out.star /= tokens;
  out.total = grow_tree(r, graph);
  out.per_token = out.total / tokens;
  return true;
}

ATTNSCOPE_COMPILE(prompt_divergence);

}  // namespace attnscope
