// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/answers/lookback.h"
#include "kernels/answers/prompt_divergence.h"
#include "kernels/clouds/fragmentation.h"
#include "kernels/clouds/local_dimension.h"
#include "kernels/graphs/fiedler.h"
#include "kernels/graphs/graph_statistics.h"
#include "kernels/graphs/laplacian.h"
#include "kernels/homology/betti.h"
#include "kernels/homology/persistence.h"
#include "kernels/information/divergence.h"
#include "kernels/information/entropy.h"
#include "kernels/information/pattern_share.h"
#include "kernels/information/sinks.h"
#include "kernels/information/span_attention.h"
#include "kernels/lazy_attention/lazy_attention.h"
#include "kernels/positions/toeplitz.h"
#include "kernels/signals/locality.h"
#include "kernels/signals/power_spectrum.h"
#include "kernels/signals/uncertainty.h"
#include "kernels/signals/wavelet.h"
#include "kernels/spectra/marchenko_pastur.h"
#include "kernels/spectra/participation_ratio.h"
#include "kernels/spectra/singular_values.h"
#include "kernels/states/alignment.h"
#include "kernels/states/reference_influence.h"
#include "kernels/weights/delta_statistics.h"
#include "linalg/mask_only.h"
#include "matrices.h"
#include "matrix/row_distances.h"
#include "matrix/widen.h"

// A call of every kernel, for tests of what all of them must hold.
namespace attnscope::testing {

using Bits = std::vector<std::uint64_t>;

class Record {
 public:
  void operator()(double x) { bits_.push_back(std::bit_cast<std::uint64_t>(x)); }
  void operator()(std::int64_t x) { bits_.push_back(static_cast<std::uint64_t>(x)); }
  void operator()(const std::vector<double>& values) {
    for (const double x : values) (*this)(x);
  }
  Bits take() { return std::move(bits_); }

  // Places from here on are of kernels that calculate in float32, or no longer.
  void in_float32(bool is_single) { turns_.emplace_back(bits_.size(), is_single); }
  bool is_single(std::size_t place) const {
    bool single = false;
    for (const auto& [begin, is_single] : turns_) {
      if (begin <= place) single = is_single;
    }
    return single;
  }

 private:
  Bits bits_;
  std::vector<std::pair<std::size_t, bool>> turns_;
};

// The scratch of all kernels.
struct EveryWorkspace {
  RowScratch entropy;
  SinkWorkspace sinks;
  DivergenceWorkspace divergence;
  AlignmentWorkspace alignment;
  InfluenceWorkspace influences;
  LaplacianWorkspace laplacian;
  FiedlerWorkspace fiedler;
  SingularValuesWorkspace singular;
  ParticipationRatioWorkspace ratio;
  MarchenkoPasturWorkspace deviation;
  GraphStatisticsWorkspace graphs;
  BettiWorkspace betti;
  PersistenceWorkspace persistent;
  RowScratch local;
  SpectrumScratch spectral;
  UncertaintyScratch uncertain;
  WaveletScratch waves;
  ToeplitzWorkspace toeplitz;
  MaskOnlyWorkspace masks;
  RowScratch differences;
  FragmentationWorkspace fragments;
  Neighbours neighbours;
  NeighbourScratch neighbour_scratch;
  RowScratch answers;
  PromptWorkspace prompts;
  PatternWorkspace patterns;
  std::vector<double> numbers;
  LazyWorkspace lazy;
};

// Room for what lazy attention says of each query, and the pointers to it.
class LazyRowNumbers {
 public:
  LazyRowNumbers(Index queries, const LazyRequest& request) : keys_(queries * request.top, -1) {
    auto firsts = static_cast<Index>(request.firsts.size());
    const std::pair<double**, Index> places[] = {
        {&rows_.log_z, 1},
        {&rows_.entropy, 1},
        {&rows_.collision, 1},
        {&rows_.largest, 1},
        {&rows_.distance, 1},
        {&rows_.mass, 1},
        {&rows_.first, firsts},
        {&rows_.near, request.near_count},
        {&rows_.beyond, request.near_count},
        {&rows_.far_mass, 1},
        {&rows_.far_squares, 1},
        {&rows_.far_largest, 1},
        {&rows_.product, request.right_channels},
        {&rows_.top_weights, request.top},
    };
    Index width = 0;
    for (const auto& [place, columns] : places) width += columns;
    numbers_.assign(static_cast<std::size_t>(queries * width), 0.0);
    double* free = numbers_.data();
    for (const auto& [place, columns] : places) {
      *place = free;
      free += queries * columns;
    }
    rows_.top_keys = keys_.data();
  }

  const LazyRows& rows() const { return rows_; }
  void record(Record& write) const {
    write(numbers_);
    for (const std::int64_t key : keys_) write(key);
  }

 private:
  LazyRows rows_;
  std::vector<double> numbers_;
  std::vector<std::int64_t> keys_;
};

// Calls lazy attention with the rows of the matrix as queries and as keys: every sum, then the
// entries above a threshold, then a tile of weights.
template <class Float, class Scalar>
void record_lazy_attention(const RowMatrix<Scalar>& matrix, EveryWorkspace& work, Record& write) {
  const Index n = matrix.rows();
  const VectorType type =
      std::is_same_v<Scalar, double> ? VectorType::float64 : VectorType::float32;
  LazyHead head;
  head.query = {matrix.data(), type, n, 1};
  head.key = {matrix.data(), type, n, 1};
  head.queries = head.keys = head.length = head.width = n;
  head.scaling = 8.0;
  head.slope = 0.01;
  const Index distances[] = {2, 5};
  // A multiple of lazy_channels under every instruction set, so that each has as many results.
  const Index channels = 16;
  const std::vector<Float> right(static_cast<std::size_t>(3 * n), Float(0.5));
  const std::vector<Float> left(static_cast<std::size_t>(channels * n), Float(0.25));
  LazyRequest request;
  request.exact = std::is_same_v<Float, double>;
  request.firsts = {1, 4};
  request.nears = distances;
  request.near_count = 2;
  request.far = far_distance(n);
  request.columns = true;
  request.top = std::min<Index>(3, n);
  request.right = right.data();
  request.left = left.data();
  request.right_channels = 3;
  request.left_channels = channels;
  LazyColumns columns;
  LazyEntries entries;
  std::vector<double> log_z(static_cast<std::size_t>(n));
  for (const bool of_entries : {false, true}) {
    if (of_entries) request.top = 0;
    request.threshold = of_entries ? 0.04 : 0.0;
    const LazyRowNumbers numbers(n, request);
    measure_lazy_rows(head, 0, n, request, numbers.rows(), columns, entries, work.lazy);
    numbers.record(write);
    std::copy_n(numbers.rows().log_z, n, log_z.data());
    for (const auto* sums :
         {&columns.incoming, &columns.squares, &columns.far_incoming, &columns.product}) {
      write(*sums);
    }
  }
  write(entries.weights);
  for (const std::int32_t key : entries.keys) write(std::int64_t{key});
  std::vector<double> divergence(log_z.size());
  const LazyHeads heads{&head, 1, log_z.data(), divergence.data()};
  const LazyRowNumbers of_mean(n, request);
  measure_lazy_mean_rows(heads, 0, n, request, of_mean.rows(), columns, entries, work.lazy);
  of_mean.record(write);
  write(divergence);
  std::vector<double> tile(static_cast<std::size_t>(n * n));
  lazy_tile(head, 0, n, 0, n, request.exact, log_z.data(), tile.data(), work.lazy);
  write(tile);
}

// Calls the kernels that read all heads of a layer, with the matrix as two heads of it.
template <class Scalar>
void record_heads(const RowMatrix<Scalar>& matrix, EveryWorkspace& work, Record& write) {
  const Index n = matrix.rows();
  const MatrixView<Scalar> head = testing::view(matrix);
  const MatrixView<Scalar> heads[] = {head, head};
  const Support support = auto_support(head);
  const Support supports[] = {support, support};
  std::vector<double> numbers(static_cast<std::size_t>(2 * n));
  head_divergence(std::span<const MatrixView<Scalar>>(heads), std::span<const Support>(supports), 0,
                  n, numbers.data(), n, work.divergence);
  write(numbers);

  const auto flags = std::make_unique<bool[]>(static_cast<std::size_t>(3 * n));
  // a map and its mirror image, which differ enough for float32
  const MatrixView<Scalar> apart[] = {head, matrix_view(matrix.data(), n, Index{1}, n)};
  const Support of_apart[] = {support, Support{}};
  const Index groups = (n + kDivergenceRows - 1) / kDivergenceRows;
  std::vector<double> sums(static_cast<std::size_t>(2 * groups));
  fast_head_divergence(std::span<const MatrixView<Scalar>>(apart),
                       std::span<const Support>(of_apart), 0, n, sums.data(), flags.get(), groups,
                       work.divergence);
  write.in_float32(true);
  write(sums);
  write.in_float32(false);

  std::fill_n(flags.get(), n, false);
  flags[0] = true;
  std::vector<double> rows(static_cast<std::size_t>(4 * n));
  std::vector<double> maps(static_cast<std::size_t>(2 * n * n));
  const RemovalRows removal{rows.data(), rows.data() + 2 * n, flags.get() + n, maps.data(), n, n};
  sink_removal(std::span<const MatrixView<Scalar>>(heads), std::span<const Support>(supports),
               flags.get(), 0, 0, n, removal, work.divergence);
  write(rows);
  write(maps);

  std::vector<double> far(static_cast<std::size_t>(5 * n));
  std::vector<std::int64_t> queries(static_cast<std::size_t>(n));
  double* const place = far.data();
  far_attention(
      head, support,
      FarAttention{place, place + n, place + 2 * n, place + 3 * n, place + 4 * n, queries.data()},
      work.sinks);
  write(far);
  for (const std::int64_t count : queries) write(count);

  std::vector<double> spectra(static_cast<std::size_t>(2 * n));
  double* const values[] = {spectra.data(), spectra.data() + n};
  const auto pack = static_cast<std::size_t>(std::min<Index>(2, laplacian_pack_width(n)));
  laplacian_spectra(std::span<const MatrixView<Scalar>>(heads, pack), GraphOptions{}, n,
                    std::span<double* const>(values, pack), work.laplacian);
  write(spectra);
  graph_weights(head, GraphOptions{}, work.laplacian);
  laplacian_from_weights(false, work.laplacian);
}

// Calls every kernel on one matrix, with the given scratch, and records the results.
template <class Scalar>
void record(const RowMatrix<Scalar>& matrix, const TriangularTable& table, EveryWorkspace& work,
            Record& write) {
  const Index n = matrix.rows();
  const MatrixView<Scalar> view = testing::view(matrix);
  const std::span<const MatrixView<Scalar>> views(&view, 1);
  const Support support = auto_support(view);
  const std::span<const Support> supports(&support, 1);
  std::vector<double> numbers(static_cast<std::size_t>(n));

  Support status;
  attention_entropy(view, true, status, true, numbers.data(), work.entropy);
  write(numbers);
  SinkRequest questions;
  questions.position = true;
  questions.first = 1;
  questions.queries = n;
  questions.top = std::min<Index>(3, n);
  SinkAnswers answers;
  answers.incoming = numbers.data();
  sink_statistics(view, true, status, questions, answers, work.sinks);
  write(numbers);
  write(answers.position);
  write(answers.top_mass);
  write(answers.share.share);
  std::vector<double> sums(numbers);
  incoming_of_heads(view, Index{1}, Index{0}, true, false, sums.data(), numbers.data(), work.sinks);
  write(numbers);
  const auto tokens = std::make_unique<bool[]>(static_cast<std::size_t>(n));
  sink_tokens(view, support, SinkRule{}, tokens.get(), work.sinks);
  for (Index j = 0; j < n; ++j) write(std::int64_t{tokens[static_cast<std::size_t>(j)]});

  std::vector<double> states(static_cast<std::size_t>(4 * n));
  widen_states(matrix.data(), n, Index{1}, Index{4}, Index{0}, n, true, states.data());
  const AlignedHead<Scalar> head{view, support};
  PairMoments moments;
  const Index end = std::min(n, state_rows(n));
  alignment_moments(std::span<const AlignedHead<Scalar>>(&head, 1), states.data(), states.data(), 4,
                    0, end, &moments, work.alignment);
  write(moments.ac);
  write(alignment_of(std::span<const PairMoments>(&moments, 1)));
  std::vector<double> influence(static_cast<std::size_t>(3 * n), 0.0);
  const auto in_panels = [&]<class Float>(const std::vector<Float>& rows) {
    std::vector<Float> panels(static_cast<std::size_t>(size_of_panels<Float>(n, 4)));
    put_in_panels(rows.data(), Index{0}, n, n, Index{4}, panels.data());
    return panels;
  };
  const auto panels = in_panels(states);
  reference_influence(view, support, StatePanels<double>{panels.data(), n, 4}, tokens.get(),
                      Index{1}, Index{0}, std::min(n, state_rows(n)),
                      Influence{influence.data(), influence.data() + n, influence.data() + 2 * n},
                      work.influences);
  write(influence);
  const std::vector<float> narrow_states(states.begin(), states.end());
  alignment_moments(std::span<const AlignedHead<Scalar>>(&head, 1), narrow_states.data(),
                    narrow_states.data(), 4, 0, end, &moments, work.alignment);
  write(moments.ac);
  const auto narrow_panels = in_panels(narrow_states);
  reference_influence(view, support, StatePanels<float>{narrow_panels.data(), n, 4}, tokens.get(),
                      Index{1}, Index{0}, std::min(n, state_rows(n)),
                      Influence{influence.data(), influence.data() + n, influence.data() + 2 * n},
                      work.influences);
  write(influence);

  GraphOptions options;
  laplacian_eigenvalues(view, options, n, numbers.data(), work.laplacian);
  write(numbers);
  for (const bool normalized : {false, true}) {
    options.normalized = normalized;
    double value = 0.0;
    fiedler_values(views, options, Precision::exact, &value, work.fiedler);
    write(value);
  }
  fiedler_vector(view, options, numbers.data(), work.fiedler);
  write(numbers);

  double* const places[] = {numbers.data()};
  singular_values(views, std::span<double* const>(places), work.singular);
  write(numbers);
  write(participation_ratio_singular(view, work.ratio));
  double fast_ratio = 0.0;
  if (fast_participation_ratio(view, &fast_ratio, work.ratio)) write(fast_ratio);
  write(participation_ratio_eigen(view, work.ratio));
  write(participation_ratio_laplacian(view, work.ratio));
  for (const SpectralNull null : {SpectralNull::automatic, SpectralNull::permutation}) {
    MarchenkoPasturOptions null_options;
    null_options.null = null;
    null_options.draws = 3;
    null_options.triangular = &table;
    MarchenkoPastur result;
    marchenko_pastur(views, supports, null_options, std::span<MarchenkoPastur>(&result, 1),
                     work.deviation);
    write(result.ks);
    write(result.wasserstein);
    write(result.p_value);
  }

  const double thresholds[] = {0.01, 0.05, 0.2};
  GraphStatistics statistics[3];
  graph_statistics(view, thresholds, 3, statistics, work.graphs);
  finish_graph_statistics(work.graphs);
  for (const GraphStatistics& of : statistics) {
    write({of.fiedler_value, of.laplacian_gap, of.density, of.hub_share, of.gini, of.centralization,
           of.degree_variance, of.star_likeness, of.in_degree_gini, of.in_degree_centralization,
           static_cast<double>(of.components), static_cast<double>(of.strong_components)});
  }
  std::int64_t numbers_of_holes[6];
  betti_numbers(view, Symmetrize::max, thresholds, 3, numbers_of_holes, work.betti);
  for (const std::int64_t number : numbers_of_holes) write(number);
  std::vector<Bar> bars;
  for (const Metric metric : {Metric::attention, Metric::hellinger}) {
    PersistenceOptions bars_options;
    bars_options.metric = metric;
    persistence(view, bars_options, work.persistent, bars);
  }
  for (const Bar& bar : bars) {
    write(bar.birth);
    write(bar.death);
  }

  double ratio = kNaN;
  Support of_ratio = support;
  local_global_ratio(view, false, of_ratio, 4, false, ratio, work.local);
  write(ratio);
  SignalOptions signal;
  signal.kind = SignalOptions::Kind::last;
  signal.min_keys = 8;
  std::vector<double> fields(32, 0.0);
  SpectrumOptions spectrum;
  spectrum.signal = signal;
  power_spectrum(view, support, spectrum, fields.data(), work.spectral);
  write(fields);
  uncertainty(view, support, signal, true, fields.data(), work.uncertain);
  write(fields);
  WaveletOptions wavelet;
  wavelet.signal = signal;
  wavelet.levels = std::max<Index>(1, wavelet_levels(n));
  fields.assign(static_cast<std::size_t>(wavelet_fields(wavelet.levels)), 0.0);
  wavelet_transform(view, support, wavelet, fields.data(), static_cast<double*>(nullptr),
                    work.waves);
  write(fields);
  const double scales[] = {1.5, 4.0};
  fields.assign(static_cast<std::size_t>(2 * n), 0.0);
  morlet_scalogram(view, support, signal, scales, 2, 6.0, fields.data(), work.waves);
  write(fields);
  SpanAttention span;
  Support found_support;
  span_attention(view, true, found_support, 1, 3, nullptr, 1, span);
  write(span.share);
  write(span.received);
  double value = 0.0;
  lookback(view, 0, true, found_support, {1, 3, 1, false}, numbers.data(), value, work.answers);
  write(numbers);
  PromptDivergence divergence{};
  prompt_divergence(view, 0, true, found_support, 1, 3, divergence, work.prompts);
  write(divergence.total);
  write(divergence.star);
  const Pattern patterns[] = {Pattern::first, Pattern::previous, Pattern::induction};
  std::vector<std::int64_t> ids(static_cast<std::size_t>(n));
  for (Index i = 0; i < n; ++i) ids[static_cast<std::size_t>(i)] = i % 3;
  PatternShare shares[3];
  pattern_share(view, true, found_support, {patterns, 3, ids.data(), Support{}, false}, shares,
                work.patterns);
  for (const PatternShare& share : shares) write({share.share, share.boost, share.distance});

  const Index rows_of_split = split_rows(n, true);
  std::vector<double> split(static_cast<std::size_t>(rows_of_split * (rows_of_split + 5)), 0.0);
  double* const at = split.data();
  const ToeplitzOutputs outputs{at,
                                at + 5 * rows_of_split,
                                at + rows_of_split,
                                at + 2 * rows_of_split,
                                at + 3 * rows_of_split,
                                at + 4 * rows_of_split,
                                rows_of_split};
  toeplitz_split(view, true, nullptr, 0, outputs, work.toeplitz);
  write(split);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(n));
  std::vector<double> offsets(static_cast<std::size_t>(2 * n));
  offset_variance(view, offsets.data(), offsets.data() + n, counts.data(), work.toeplitz);
  write(offsets);
  for (Index k = 0; k < rows_of_split; ++k) counts[static_cast<std::size_t>(k)] = k;
  std::fill(split.begin(), split.end(), 0.0);
  mask_only(view, -1.0, counts.data(), rows_of_split, true, at, at + rows_of_split,
            at + 2 * rows_of_split, at + 5 * rows_of_split, rows_of_split, work.masks);
  write(split);
  write(
      delta_sums(view, view, static_cast<Difference<Scalar, Scalar>*>(nullptr), n, work.differences)
          .before_energy);

  // Distances of the rows as points.
  const Index stride = point_stride(n);
  std::vector<double, Eigen::aligned_allocator<double>> points(
      static_cast<std::size_t>(point_rows(n) * stride), 0.0);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j)
      points[static_cast<std::size_t>(i * stride + j)] = static_cast<double>(matrix(i, j));
  }
  RowMatrix<double> distances(n, n);
  for (Index begin = 0; begin < n; begin += kDistanceRows) {
    row_distances(points.data(), n, n, PointMetric::euclidean, begin,
                  std::min(n, begin + kDistanceRows), distances.data(), n);
  }
  const MatrixView<double> apart = testing::view(distances);
  write(fragmentation(apart, nullptr, work.fragments));
  Components parts[2];
  const double radii[] = {0.1, 0.5};
  cloud_components(apart, radii, 2, 2, parts, work.fragments);
  write(parts[0].components);
  reset_neighbours(n, work.neighbours);
  std::vector<std::int32_t> equal;
  for (Index i = 0; i < n; ++i) {
    sort_neighbours(apart, nullptr, i, Index{5}, work.neighbours, equal, work.neighbour_scratch);
  }
  const Index nearest = 5;
  std::int64_t used = 0, tied = 0;
  double dimension = 0.0;
  std::vector<double> of_points(static_cast<std::size_t>(n), 0.0);
  local_dimension(work.neighbours, nullptr, &nearest, 1,
                  {&dimension, of_points.data(), &used, &tied}, work.numbers);
  write(dimension);
  write(two_nn(work.neighbours, nullptr, 0.1, work.numbers));
  PersistenceOptions of_distances;
  of_distances.metric = Metric::distance;
  for (const int most : {0, 1}) {
    of_distances.max_dimension = most;
    bars.clear();
    persistence(apart, of_distances, work.persistent, bars);
    for (const Bar& bar : bars) write(bar.death);
  }

  record_heads(matrix, work, write);
  write.in_float32(true);
  record_lazy_attention<float>(matrix, work, write);
  write.in_float32(false);
  record_lazy_attention<double>(matrix, work, write);
}

}  // namespace attnscope::testing
