// SPDX-License-Identifier: MIT
#include "kernels/answers/prompt_divergence.h"

#include <algorithm>
#include <limits>

#include "matrix/matrix_view.h"
#include "matrix/partial_map.h"
#include "matrix/rows.h"

namespace attnscope {
namespace {

template <class WideType>
double largest(const WideType* row, Index end) {
  Lanes lanes = Lanes{} - std::numeric_limits<double>::infinity();
  Index j = 0;
  for (; j + kPackWidth <= end; j += kPackWidth) {
    const Lanes entries = load(row + j);
    lanes = entries > lanes ? entries : lanes;
  }
  double most = -std::numeric_limits<double>::infinity();
  for (; j < end; ++j) most = std::max(most, static_cast<double>(row[j]));
  for (Index k = 0; k < kPackWidth; ++k) most = std::max(most, lanes[k]);
  return most;
}

// Similarities: of each answer token to the prompt to workspace.best, of each pair of answer tokens
// to workspace.square, capped at 1.
template <class Scalar>
void read_similarities(const MatrixView<Scalar>& attention, Index first_row, const Support& support,
                       Index start, Index stop, PromptWorkspace& workspace) {
  const auto r = static_cast<std::size_t>(stop - start);
  workspace.square.assign(r * r, 0.0);
  workspace.best.assign(r, -std::numeric_limits<double>::infinity());
  RowReader<Scalar> reader(attention, support, workspace.rows);
  const bool rest_is_zero = support.kind == Support::Kind::causal || first_row > 0;
  for (Index i = start; i < stop; ++i) {
    const auto at = static_cast<std::size_t>(i - start);
    const Wide<Scalar>* row = reader.row(i);
    double& best = workspace.best[at];
    best = largest(row, start);
    if (rest_is_zero) best = std::max(best, 0.0);  // what the prompt gives the answer
    const Index end = std::min(stop, reader.end(i));
    double* pairs = workspace.square.data() + at * r;
    for (Index j = start; j < end; ++j) pairs[j - start] = static_cast<double>(row[j]);
  }
  if (!rest_is_zero) {
    for (Index i = 0; i < start; ++i) {
      const Wide<Scalar>* row = reader.row(i);
      for (Index j = start; j < stop; ++j) {
        double& best = workspace.best[static_cast<std::size_t>(j - start)];
        best = std::max(best, static_cast<double>(row[j]));
      }
    }
  }
  for (std::size_t i = 0; i < r; ++i) {
    workspace.best[i] = std::min(workspace.best[i], 1.0);
    for (std::size_t j = 0; j < i; ++j) {
      double& one = workspace.square[i * r + j];
      double& other = workspace.square[j * r + i];
      one = other = std::min(std::max(one, other), 1.0);
    }
  }
}

// Grows the tree from the prompt; the distances in the order of growth add up.
double grow_tree(Index r, PromptWorkspace& workspace) {
  constexpr double kInside = -std::numeric_limits<double>::infinity();
  double* best = workspace.best.data();
  double total = 0.0;
  for (Index step = 0; step < r; ++step) {
    Index nearest = 0;
    for (Index i = 1; i < r; ++i) {
      if (best[i] > best[nearest]) nearest = i;
    }
    total += 1.0 - best[nearest];
    const double* pairs = workspace.square.data() + nearest * r;
    for (Index i = 0; i < r; ++i) {
      best[i] = best[i] == kInside ? kInside : std::max(best[i], pairs[i]);
    }
    best[nearest] = kInside;
  }
  return total;
}

}  // namespace

template <class Scalar>
bool prompt_divergence(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
                       const Support& support, Index start, Index stop, PromptDivergence& out,
                       PromptWorkspace& workspace) {
  Support entries = find_support ? Support{} : support;
  if (!read_partial_map(attention, first_row, false, entries, workspace.rows)) return false;
  out = {kNaN, kNaN, kNaN};
  if (start == 0) return true;
  read_similarities(attention, first_row, entries, start, stop, workspace);
  const Index r = stop - start;
  const auto tokens = static_cast<double>(r);
  out.star = 0.0;
  for (const double similarity : workspace.best) out.star += 1.0 - similarity;
  out.star /= tokens;
  out.total = grow_tree(r, workspace);
  out.per_token = out.total / tokens;
  return true;
}

ATTNSCOPE_COMPILE(prompt_divergence);

}  // namespace attnscope
