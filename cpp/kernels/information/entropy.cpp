// SPDX-License-Identifier: MIT
#include "kernels/information/entropy.h"

#include <algorithm>
#include <cmath>

#include "matrix/row_groups/fast_row_statistics.h"
#include "matrix/row_statistics.h"
#include "matrix/rows.h"

namespace attnscope {

namespace {

// Entropies after a reading that finds out the support; false where an entry is not finite.
template <class Scalar>
bool entropies(const MatrixView<Scalar>& attention, bool find_support, Support& support,
               double* out, RowScratch& scratch) {
  if (find_support) {
    support.kind =
        is_causal(attention, support.shift) ? Support::Kind::causal : Support::Kind::full;
  } else if (!all_finite(attention)) {
    return false;
  }
  row_entropies(attention, support, find_support, false, out, scratch);
  // Where the support was found every entry is 0 or in an entropy.
  const auto is_finite = [](double entropy) { return std::isfinite(entropy); };
  return !find_support || std::all_of(out, out + attention.rows(), is_finite) ||
         all_finite(attention);
}

}  // namespace

template <class Scalar>
bool attention_entropy(const MatrixView<Scalar>& attention, bool find_support, Support& support,
                       bool normalized, double* out, RowScratch& scratch, bool fast) {
  const Index queries = attention.rows();
  const Index n = attention.cols();
  const bool is_read_twice = !find_support || stays_in_cache(attention);
  const bool finite = fast && !std::is_same_v<Scalar, double>
                          ? fast_entropies(attention, find_support, support, out, scratch)
                      : is_read_twice
                          ? entropies(attention, find_support, support, out, scratch)
                          : row_statistics(attention, find_support, support, out, scratch);
  if (!finite) {
    std::fill(out, out + queries, kNaN);
    return false;
  }
  if (normalized) normalize_entropies(support, queries, n, out);
  return true;
}

void normalize_entropies(const Support& support, Index queries, Index n, double* entropies) {
  for (Index i = 0; i < queries; ++i) {
    const Index keys = visible_keys(support, i, n);
    entropies[i] = keys < 2 ? kNaN : entropies[i] / std::log(static_cast<double>(keys));
  }
}

ATTNSCOPE_COMPILE(attention_entropy);

}  // namespace attnscope
