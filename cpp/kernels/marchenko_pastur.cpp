// SPDX-License-Identifier: MIT
#include "kernels/marchenko_pastur.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/base/spectral_distance.h"
#include "kernels/base/widen.h"

namespace attnscope {
namespace {

// The finaliser of SplitMix64 (Steele, Lea and Flood 2014): a bijection that mixes every bit.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Uniform in [0, bound), by the high half of a product.
Index below(std::uint64_t random, Index bound) {
  return static_cast<Index>(
      (static_cast<unsigned __int128>(random) * static_cast<unsigned __int128>(bound)) >> 64);
}

// Lists the keys that `query` sees.
void visible_keys(const Support& support, Index query, Index n, std::vector<Index>& keys) {
  keys.clear();
  const Index end = support.end(query, n);
  for (Index key = 0; key < end; ++key) {
    if (support.visible(query, key)) keys.push_back(key);
  }
}

// Overwrites the float64 matrix in workspace.standardized by X and lists the kept rows.
void standardize(const Support& support, Index n, MarchenkoPasturWorkspace& workspace) {
  workspace.kept.clear();
  std::vector<double>& row = workspace.row;
  for (Index i = 0; i < n; ++i) {
    double* x = workspace.standardized.data() + i * n;
    visible_keys(support, i, n, workspace.columns);
    const auto count = workspace.columns.size();
    row.resize(count);
    for (std::size_t j = 0; j < count; ++j) row[j] = x[workspace.columns[j]];
    std::fill(x, x + n, 0.0);
    // A computed deviation of equal entries is not always 0, so the entries themselves are compared.
    const bool varies =
        std::any_of(row.begin(), row.end(), [&](double entry) { return entry != row.front(); });
    if (!varies) continue;
    double mean = 0.0;
    for (const double entry : row) mean += entry;
    mean /= static_cast<double>(count);
    double largest = 0.0;
    for (double& entry : row) {
      entry -= mean;
      largest = std::max(largest, std::abs(entry));
    }
    // Entries as small as 1e-200 still vary, and their squares must not vanish.
    double variance = 0.0;
    for (double& entry : row) {
      entry /= largest;
      variance += entry * entry;
    }
    const double deviation = std::sqrt(variance / static_cast<double>(count));
    for (std::size_t j = 0; j < count; ++j) x[workspace.columns[j]] = row[j] / deviation;
    workspace.kept.push_back(i);
  }
}

// The k largest squared singular values of `matrix` over n, ascending, to `spectrum`; overwrites matrix.
void spectrum_of(double* matrix, Index n, double* spectrum, MarchenkoPasturWorkspace& workspace) {
  workspace.sigma.resize(static_cast<std::size_t>(n));
  singular_values(matrix_view(static_cast<const double*>(matrix), n, n, Index{1}),
                  workspace.sigma.data(), workspace.singular_values);
  const Index k = static_cast<Index>(workspace.kept.size());
  for (Index i = 0; i < k; ++i) {
    const double sigma = workspace.sigma[static_cast<std::size_t>(k - 1 - i)];
    spectrum[i] = sigma * sigma / static_cast<double>(n);
  }
}

// Shuffles the visible entries of each kept row of workspace.standardized into workspace.shuffled.
void shuffle(const Support& support, Index n, std::uint64_t key, MarchenkoPasturWorkspace& workspace) {
  workspace.shuffled = workspace.standardized;
  for (const Index i : workspace.kept) {
    double* x = workspace.shuffled.data() + i * n;
    visible_keys(support, i, n, workspace.columns);
    std::uint64_t counter = mixed(key ^ mixed(static_cast<std::uint64_t>(i)));
    for (auto left = static_cast<Index>(workspace.columns.size()); left > 1; --left) {
      const Index pick = below(mixed(counter++), left);
      std::swap(x[workspace.columns[left - 1]], x[workspace.columns[pick]]);
    }
  }
}

// True when the mask hides exactly what the rule hides.
bool same_support(const Support& mask, Support::Kind kind, Index n) {
  Support rule;
  rule.kind = kind;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      if (mask.visible(i, j) != rule.visible(i, j)) return false;
    }
  }
  return true;
}

SpectralNull resolved(SpectralNull null, const Support& support, Index n) {
  if (null != SpectralNull::automatic) return null;
  if (same_support(support, Support::Kind::causal, n)) return SpectralNull::causal;
  if (same_support(support, Support::Kind::full, n)) return SpectralNull::full;
  return SpectralNull::permutation;
}

void compare_with_draws(const Support& support, Index n, std::uint64_t key, Index draws,
                        MarchenkoPasturWorkspace& workspace, MarchenkoPastur& result) {
  const std::vector<double>& spectrum = workspace.spectrum;
  const auto k = static_cast<Index>(spectrum.size());
  workspace.null.resize(static_cast<std::size_t>(draws * k));
  workspace.pool.clear();
  for (const double value : spectrum) workspace.pool.emplace_back(value, 0);
  for (Index draw = 0; draw < draws; ++draw) {
    shuffle(support, n, mixed(key + static_cast<std::uint64_t>(draw)), workspace);
    double* values = workspace.null.data() + draw * k;
    spectrum_of(workspace.shuffled.data(), n, values, workspace);
    for (Index i = 0; i < k; ++i) workspace.pool.emplace_back(values[i], draw + 1);
  }
  std::sort(workspace.null.begin(), workspace.null.end());
  result.edge = workspace.null.back();
  leave_one_out_deviations(workspace.pool, draws + 1, k, kResolvedShare * result.edge, workspace.seen,
                           workspace.deviations);
  result.ks = workspace.deviations.front();
  result.wasserstein = wasserstein(spectrum, std::span<const double>(workspace.null));
  Index at_least = 0;
  for (Index draw = 1; draw <= draws; ++draw) {
    // The sums behind two equal deviations are the same integers over the same weights: no tolerance.
    if (workspace.deviations[static_cast<std::size_t>(draw)] >= result.ks) ++at_least;
  }
  result.p_value = static_cast<double>(1 + at_least) / static_cast<double>(1 + draws);
}

}  // namespace

template <class Scalar>
MarchenkoPastur marchenko_pastur(const MatrixView<Scalar>& matrix, const Support& support,
                                 const MarchenkoPasturOptions& options,
                                 MarchenkoPasturWorkspace& workspace) {
  const Index n = matrix.rows();
  MarchenkoPastur result;
  if (n < kFewestTokens) return result;
  workspace.standardized.resize(static_cast<std::size_t>(n * n));
  widen(matrix, workspace.standardized.data(), n);
  const SpectralNull null = resolved(options.null, support, n);
  std::uint64_t key = mixed(options.seed);
  if (null == SpectralNull::permutation) {
    for (const double entry : workspace.standardized) {
      key = mixed(key ^ std::bit_cast<std::uint64_t>(entry + 0.0));  // −0 counts as 0
    }
  }
  standardize(support, n, workspace);
  const Index k = static_cast<Index>(workspace.kept.size());
  if (k == 0) return result;
  workspace.spectrum.resize(static_cast<std::size_t>(k));
  std::vector<double>& spectrum = workspace.spectrum;
  workspace.shuffled = workspace.standardized;
  spectrum_of(workspace.shuffled.data(), n, spectrum.data(), workspace);

  if (null == SpectralNull::permutation) {
    compare_with_draws(support, n, key, options.draws, workspace, result);
  } else {
    const NullLaw law =
        null == SpectralNull::causal
            ? NullLaw::triangular()
            : NullLaw::marchenko_pastur(static_cast<double>(k) / static_cast<double>(n));
    result.edge = law.edge();
    result.ks = kolmogorov_smirnov(spectrum, law, kResolvedShare * law.edge());
    result.wasserstein = wasserstein(std::span<const double>(spectrum), law);
  }
  const double bound = result.edge * (1.0 + std::pow(static_cast<double>(n), -2.0 / 3.0));
  double total = 0.0;
  double outside = 0.0;
  result.outliers = 0;
  for (const double value : spectrum) {
    total += value;
    if (value <= bound) continue;
    ++result.outliers;
    outside += value;
  }
  result.outlier_energy = outside / total;
  result.largest = spectrum.back();
  return result;
}

#define ATTNSCOPE_INSTANTIATE(Scalar)                                                              \
  template MarchenkoPastur marchenko_pastur<Scalar>(const MatrixView<Scalar>&, const Support&,     \
                                                    const MarchenkoPasturOptions&,                 \
                                                    MarchenkoPasturWorkspace&);
ATTNSCOPE_FOR_EACH_SCALAR(ATTNSCOPE_INSTANTIATE)
#undef ATTNSCOPE_INSTANTIATE

}  // namespace attnscope
