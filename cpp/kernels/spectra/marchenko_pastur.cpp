// SPDX-License-Identifier: MIT
#include "kernels/spectra/marchenko_pastur.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "random_matrices/spectral_distance.h"
#include "random_matrices/standard_rows.h"

namespace attnscope {
namespace {

// What the error of an eigenvalue may move ks by, of exact results and of fast ones.
constexpr double kKsError = 1e-10;
constexpr double kFastKsError = 1e-4;

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

// Queries and keys of a map, and what its eigenvalues are squared singular values over: the keys
// that any query sees, or the kept rows where they are more.
struct Size {
  Index queries;
  Index keys;

  Index least() const { return std::min(queries, keys); }
  Index scale(const Support& support, Index varying) const {
    return std::max(support.end(queries - 1, keys), varying);
  }
};

template <class Scalar>
Size size_of(const MatrixView<Scalar>& matrix) {
  return {matrix.rows(), matrix.cols()};
}

// Overwrites the float64 matrix in rows.standardized by X and lists the kept rows.
void standardize(const Support& support, Size size, MarchenkoPasturWorkspace::Rows& rows,
                 MarchenkoPasturWorkspace& workspace) {
  const Index n = size.keys;
  rows.varying.clear();
  for (Index i = 0; i < size.queries; ++i) {
    double* x = rows.standardized.data() + i * n;
    Index count = support.end(i, n);
    double* row = x;
    if (support.kind == Support::Kind::mask) {
      visible_keys(support, i, n, workspace.columns);
      count = static_cast<Index>(workspace.columns.size());
      workspace.row.resize(n);
      row = workspace.row.data();
      for (Index j = 0; j < count; ++j) row[j] = x[workspace.columns[j]];
      std::fill(x, x + n, 0.0);
    } else {
      std::fill(x + count, x + n, 0.0);
    }
    if (count < 2 || !standardize_row(row, count)) {
      std::fill(x, x + n, 0.0);
      continue;
    }
    rows.varying.push_back(i);
    if (row == x) continue;
    for (Index j = 0; j < count; ++j) x[workspace.columns[j]] = row[j];
  }
}

// The k largest squared singular values over `scale`, ascending.
void spectrum_of(std::span<const double> sigma, Index scale, std::span<double> spectrum) {
  const std::size_t k = spectrum.size();
  for (std::size_t i = 0; i < k; ++i) {
    spectrum[i] = sigma[k - 1 - i] * sigma[k - 1 - i] / static_cast<double>(scale);
  }
}

// Shuffles the visible entries of each kept row of `x`.
void shuffle(const Support& support, const std::vector<Index>& varying, Index n, std::uint64_t key,
             double* x, std::vector<Index>& columns) {
  for (const Index i : varying) {
    double* row = x + i * n;
    visible_keys(support, i, n, columns);
    std::uint64_t counter = mixed(key ^ mixed(static_cast<std::uint64_t>(i)));
    for (auto left = static_cast<Index>(columns.size()); left > 1; --left) {
      const Index pick = below(mixed(counter++), left);
      std::swap(row[columns[left - 1]], row[columns[pick]]);
    }
  }
}

// The rule that a mask spells out, where it is one.
Support simplified(const Support& support, Size size) {
  if (support.kind != Support::Kind::mask) return support;
  for (const auto kind : {Support::Kind::causal, Support::Kind::full}) {
    Support rule = support;
    rule.kind = kind;
    bool is_the_rule = kind == Support::Kind::full || support.positions == nullptr;
    for (Index i = 0; i < size.queries && is_the_rule; ++i) {
      for (Index j = 0; j < size.keys && is_the_rule; ++j)
        is_the_rule = support.visible(i, j) == rule.visible(i, j);
    }
    if (is_the_rule) return rule;
  }
  return support;
}

SpectralNull resolved(SpectralNull null, const Support& support) {
  if (null != SpectralNull::automatic) return null;
  if (support.kind == Support::Kind::causal) return SpectralNull::causal;
  if (support.kind == Support::Kind::full) return SpectralNull::full;
  return SpectralNull::permutation;
}

// The spectra of the shuffled copies of one map, ascending, one after another, to workspace.null.
void draw_spectra(const MarchenkoPasturWorkspace::Rows& rows, const Support& support, Size size,
                  Index k, Index draws, MarchenkoPasturWorkspace& workspace) {
  const Index width = singular_values_width();
  const Index entries = size.queries * size.keys;
  const Index scale = size.scale(support, static_cast<Index>(rows.varying.size()));
  workspace.null.resize(draws * k);
  workspace.shuffled.resize(width * entries);
  workspace.sigma.resize(width * size.least());
  std::vector<MatrixView<double>> views;
  std::vector<double*> out;
  for (Index first = 0; first < draws; first += width) {
    views.clear();
    out.clear();
    for (Index lane = 0; lane < std::min(width, draws - first); ++lane) {
      double* x = workspace.shuffled.data() + lane * entries;
      std::copy(rows.standardized.begin(), rows.standardized.begin() + entries, x);
      shuffle(support, rows.varying, size.keys,
              mixed(rows.key + static_cast<std::uint64_t>(first + lane)), x, workspace.columns);
      views.push_back(
          matrix_view(static_cast<const double*>(x), size.queries, size.keys, size.keys, Index{1}));
      out.push_back(workspace.sigma.data() + lane * size.least());
    }
    singular_values(std::span<const MatrixView<double>>(views), std::span<double* const>(out),
                    workspace.singular_values);
    for (std::size_t lane = 0; lane < views.size(); ++lane) {
      double* values = workspace.null.data() + (first + static_cast<Index>(lane)) * k;
      spectrum_of({out[lane], out[lane] + size.least()}, scale, {values, values + k});
    }
  }
}

void compare_with_draws(const MarchenkoPasturWorkspace::Rows& rows, const Support& support,
                        Size size, const MarchenkoPasturOptions& options,
                        MarchenkoPasturWorkspace& workspace, MarchenkoPastur& result) {
  const Index draws = options.draws;
  const std::vector<double>& spectrum = workspace.spectrum;
  const auto k = static_cast<Index>(spectrum.size());
  draw_spectra(rows, support, size, k, draws, workspace);
  workspace.pool.clear();
  for (const double value : spectrum) workspace.pool.emplace_back(value, 0);
  for (Index i = 0; i < draws * k; ++i) workspace.pool.emplace_back(workspace.null[i], i / k + 1);
  std::sort(workspace.null.begin(), workspace.null.end());
  result.edge = workspace.null.back();
  leave_one_out_deviations(workspace.pool, draws + 1, k, kResolvedShare * result.edge,
                           workspace.passed, workspace.deviations);
  result.ks = workspace.deviations.front();
  if (options.all_fields) {
    result.wasserstein = wasserstein(spectrum, std::span<const double>(workspace.null));
  }
  Index at_least = 0;
  for (Index draw = 1; draw <= draws; ++draw) {
    // The sums behind two equal deviations are the same integers over the same weights: no
    // tolerance.
    if (workspace.deviations[draw] >= result.ks) ++at_least;
  }
  result.p_value = static_cast<double>(1 + at_least) / static_cast<double>(1 + draws);
}

// The law of the support, rows over columns being `aspect`.
NullLaw law_of(bool causal, double aspect, const MarchenkoPasturOptions& options) {
  if (!causal) return NullLaw::marchenko_pastur(aspect);
  return aspect >= 1.0 ? NullLaw::triangular(options.triangular) : NullLaw::trapezoid(aspect);
}

// Reads one matrix, resolves its null and standardises its rows.
template <class Scalar>
void prepare(const MatrixView<Scalar>& matrix, const Support& support,
             const MarchenkoPasturOptions& options, MarchenkoPasturWorkspace::Rows& rows,
             MarchenkoPasturWorkspace& workspace) {
  const Size size = size_of(matrix);
  rows.standardized.resize(size.queries * size.keys);
  rows.sigma.resize(size.least());
  widen(matrix, rows.standardized.data(), size.keys);
  rows.null = resolved(options.null, support);
  if (rows.null == SpectralNull::permutation) {
    rows.key = mixed(options.seed);
    for (const double entry : rows.standardized) {
      rows.key = mixed(rows.key ^ std::bit_cast<std::uint64_t>(entry + 0.0));  // −0 counts as 0
    }
  }
  standardize(support, size, rows, workspace);
}

// Eigenvalues beyond this many times the edge of the law of matrices of n rows are outliers.
double outlier_margin(Index n) { return 1.0 + std::pow(static_cast<double>(n), -2.0 / 3.0); }

// What is counted and summed over the spectrum once its law's edge is known.
void sum_up(std::span<const double> spectrum, Index n, MarchenkoPastur& result) {
  const double margin = outlier_margin(n);
  double total = 0.0;
  double outside = 0.0;
  result.outliers = 0;
  for (const double value : spectrum) {
    total += value;
    if (value <= result.edge * margin) continue;
    ++result.outliers;
    outside += value;
  }
  result.outlier_energy = outside / total;
  result.largest = spectrum.back();
}

// From the singular values of X: any support, any null.
template <class Scalar>
void by_singular_values(std::span<const MatrixView<Scalar>> matrices,
                        std::span<const Support> supports, const MarchenkoPasturOptions& options,
                        std::span<MarchenkoPastur> results, MarchenkoPasturWorkspace& workspace) {
  const Size size = size_of(matrices.front());
  const std::size_t count = matrices.size();
  if (workspace.maps.size() < count) workspace.maps.resize(count);
  std::vector<MatrixView<double>> views;
  std::vector<double*> out;
  for (std::size_t at = 0; at < count; ++at) {
    MarchenkoPasturWorkspace::Rows& rows = workspace.maps[at];
    prepare(matrices[at], supports[at], options, rows, workspace);
    const double* x = rows.standardized.data();
    views.push_back(matrix_view(x, size.queries, size.keys, size.keys, Index{1}));
    out.push_back(rows.sigma.data());
  }
  singular_values(std::span<const MatrixView<double>>(views), std::span<double* const>(out),
                  workspace.singular_values);
  for (std::size_t at = 0; at < count; ++at) {
    const MarchenkoPasturWorkspace::Rows& rows = workspace.maps[at];
    if (rows.varying.empty()) continue;
    MarchenkoPastur& result = results[at];
    const auto varying = static_cast<Index>(rows.varying.size());
    const Index scale = size.scale(supports[at], varying);
    workspace.spectrum.resize(std::min(varying, size.keys));
    spectrum_of(rows.sigma, scale, workspace.spectrum);
    if (rows.null == SpectralNull::permutation) {
      compare_with_draws(rows, supports[at], size, options, workspace, result);
    } else {
      const bool causal = rows.null == SpectralNull::causal;
      const auto rows_of_law =
          causal ? size.queries : static_cast<Index>(workspace.spectrum.size());
      const double aspect = static_cast<double>(rows_of_law) / static_cast<double>(scale);
      const NullLaw law = law_of(causal, aspect, options);
      result.edge = law.edge();
      result.ks =
          kolmogorov_smirnov(workspace.spectrum, law, kResolvedShare * law.edge(), law.table());
      if (options.all_fields) {
        result.wasserstein = wasserstein(workspace.spectrum, law, workspace.quantiles);
      }
    }
    if (options.all_fields) sum_up(workspace.spectrum, size.least(), result);
  }
}

// Against the law of the support that all matrices share. Where the error of an eigenvalue might
// show in ks, from the map's singular values; returns how many maps of `fast` these were.
template <class Scalar>
Index by_row_spectra(std::span<const MatrixView<Scalar>> matrices,
                     std::span<const Support> supports, const MarchenkoPasturOptions& options,
                     std::span<MarchenkoPastur> results, MarchenkoPasturWorkspace& workspace) {
  const Index n = matrices.front().rows();
  const bool causal = supports.front().kind == Support::Kind::causal;
  std::vector<MatrixView<Scalar>> doubted;
  std::vector<std::size_t> places;
  row_tridiagonals(matrices, causal, workspace.row_spectrum);
  const RowSpectrumWorkspace& rows = workspace.row_spectrum;
  const auto count = static_cast<Index>(matrices.size());
  const double* tridiagonals = workspace.row_spectrum.tridiagonals.resize(2 * n * dqds_width());
  workspace.compared.clear();
  for (Index at = 0; at < count; ++at) {
    // A map without a row that varies is compared with something, and passed over.
    const Index rows_that_vary = std::max<Index>(rows.varying_rows[at], 1);
    const double aspect =
        causal ? 1.0 : static_cast<double>(rows_that_vary) / static_cast<double>(n);
    workspace.compared.push_back(
        {law_of(causal, aspect, options), rows_that_vary, rows.errors[at]});
  }
  workspace.distances.resize(matrices.size());
  if (options.all_fields) row_spectra(n, count, workspace.row_spectrum);
  // With every eigenvalue at hand ks is read off them, but not to the bits of counts. Without a
  // table of the law that takes no less time.
  const bool by_values = options.all_fields && options.precision == Precision::fast && causal &&
                         options.triangular != nullptr;
  if (!by_values) {
    counted_distances(tridiagonals, tridiagonals + n * dqds_width(), n, workspace.compared,
                      workspace.distances, workspace.counted);
  }
  for (Index at = 0; at < count; ++at) {
    if (rows.varying_rows[at] == 0) continue;
    if (by_values) {
      const NullLaw& law = workspace.compared[at].law;
      const double* end = rows.values.data() + (at + 1) * n;
      workspace.distances[at] =
          certified_kolmogorov_smirnov({end - rows.varying_rows[at], end}, rows.errors[at], law,
                                       kResolvedShare * law.edge(), law.table());
    }
    if (!(workspace.distances[at].uncertain <= (by_values ? kFastKsError : kKsError))) {
      doubted.push_back(matrices[at]);
      places.push_back(static_cast<std::size_t>(at));
      continue;
    }
    MarchenkoPastur& result = results[at];
    const NullLaw& law = workspace.compared[at].law;
    result.edge = law.edge();
    result.ks = workspace.distances[at].distance;
    if (!options.all_fields) continue;
    const double* end = rows.values.data() + (at + 1) * n;
    const std::span<const double> spectrum(end - rows.varying_rows[at], end);
    result.wasserstein = wasserstein(spectrum, law, workspace.quantiles);
    sum_up(spectrum, n, result);
  }
  if (doubted.empty()) return 0;
  std::vector<MarchenkoPastur> exact(doubted.size());
  by_singular_values(std::span<const MatrixView<Scalar>>(doubted), supports.first(doubted.size()),
                     options, std::span<MarchenkoPastur>(exact), workspace);
  for (std::size_t k = 0; k < places.size(); ++k) results[places[k]] = exact[k];
  return by_values ? static_cast<Index>(places.size()) : 0;
}

// Whether an eigenvalue may lie on the other side of where outliers begin.
bool outliers_are_open(std::span<const double> spectrum, RootError error, Index n, double edge) {
  const double begin = std::sqrt(edge * outlier_margin(n));
  return std::ranges::any_of(spectrum, [&](double value) {
    const double root = std::sqrt(value);
    return std::abs(root - begin) <= error.of(root);
  });
}

// As by_row_spectra, from singular values in float32. Returns the maps of which they leave more
// open than `fast` states.
template <class Scalar>
std::vector<std::size_t> in_float32(std::span<const MatrixView<Scalar>> matrices, bool causal,
                                    const MarchenkoPasturOptions& options,
                                    std::span<MarchenkoPastur> results,
                                    MarchenkoPasturWorkspace& workspace) {
  const Index n = matrices.front().rows();
  float_row_spectra(matrices, causal, workspace.float_rows);
  std::vector<std::size_t> open;
  for (std::size_t at = 0; at < matrices.size(); ++at) {
    const Index varying = workspace.float_rows.varying_rows[at];
    if (varying == 0) continue;
    const double* end = workspace.float_rows.values.data() + static_cast<Index>(at + 1) * n;
    const std::span<const double> spectrum(end - varying, end);
    const double aspect = causal ? 1.0 : static_cast<double>(varying) / static_cast<double>(n);
    const NullLaw law = law_of(causal, aspect, options);
    const RootError error = float_row_error(n, spectrum.back());
    const CertifiedDistance ks = certified_kolmogorov_smirnov(
        spectrum, error, law, kResolvedShare * law.edge(), law.table());
    if (!(ks.uncertain <= kFastKsError) ||
        (options.all_fields && outliers_are_open(spectrum, error, n, law.edge()))) {
      open.push_back(at);
      continue;
    }
    MarchenkoPastur& result = results[at];
    result.ks = ks.distance;
    result.edge = law.edge();
    if (!options.all_fields) continue;
    result.wasserstein = wasserstein(spectrum, law, workspace.quantiles);
    sum_up(spectrum, n, result);
  }
  return open;
}

// Whether a square map's law is that of its support, so that its spectrum may come from XXᵀ.
bool has_own_law(const Support& support, Size size, SpectralNull null) {
  if (size.queries != size.keys || (support.kind == Support::Kind::causal && support.shift != 0)) {
    return false;
  }
  const SpectralNull of_map = resolved(null, support);
  return of_map != SpectralNull::permutation &&
         of_map == resolved(SpectralNull::automatic, support);
}

}  // namespace

template <class Scalar>
Index marchenko_pastur(std::span<const MatrixView<Scalar>> matrices,
                       std::span<const Support> supports, const MarchenkoPasturOptions& options,
                       std::span<MarchenkoPastur> results, MarchenkoPasturWorkspace& workspace) {
  const Size size = size_of(matrices.front());
  std::fill(results.begin(), results.end(), MarchenkoPastur{});
  if (size.least() < kFewestTokens) return 0;
  Support rules[kMostTogether];
  for (std::size_t at = 0; at < supports.size(); ++at) rules[at] = simplified(supports[at], size);
  const bool fast = options.precision == Precision::fast && is_faster_in_float32(size.keys);
  const auto width = static_cast<std::size_t>(singular_values_width());
  Index measured_exactly = 0;
  // Runs of maps of one kind are worked on together.
  for (std::size_t begin = 0, end = 0; begin < matrices.size(); begin = end) {
    const bool gram = has_own_law(rules[begin], size, options.null);
    const bool in_floats = gram && fast;
    while (end < matrices.size() && (in_floats || end - begin < width) &&
           has_own_law(rules[end], size, options.null) == gram &&
           (!gram || rules[end].kind == rules[begin].kind)) {
      ++end;
    }
    const auto maps = matrices.subspan(begin, end - begin);
    const std::span<const Support> rules_of_block(rules + begin, end - begin);
    const auto results_of_block = results.subspan(begin, end - begin);
    if (in_floats) {
      const bool causal = rules[begin].kind == Support::Kind::causal;
      MarchenkoPasturOptions exactly = options;
      exactly.precision = Precision::exact;
      for (const std::size_t at : in_float32(maps, causal, options, results_of_block, workspace)) {
        by_row_spectra(maps.subspan(at, 1), rules_of_block.subspan(at, 1), exactly,
                       results_of_block.subspan(at, 1), workspace);
        ++measured_exactly;
      }
    } else if (gram) {
      measured_exactly +=
          by_row_spectra(maps, rules_of_block, options, results_of_block, workspace);
    } else {
      by_singular_values(maps, rules_of_block, options, results_of_block, workspace);
    }
  }
  return measured_exactly;
}

ATTNSCOPE_COMPILE(marchenko_pastur);

}  // namespace attnscope
