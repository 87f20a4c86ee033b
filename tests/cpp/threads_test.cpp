// SPDX-License-Identifier: MIT
// Every kernel from eight threads at once, on shared inputs and scratch of their own: the same bits
// as on one thread, and under ThreadSanitizer no race. Kernels start no threads and hold no global
// state, so plain threads show what OpenMP's would, without its runtime, which ThreadSanitizer
// cannot see into.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/graphs/fiedler.h"
#include "kernels/graphs/graph_statistics.h"
#include "kernels/graphs/laplacian.h"
#include "kernels/homology/betti.h"
#include "kernels/homology/persistence.h"
#include "kernels/information/divergence.h"
#include "kernels/information/entropy.h"
#include "kernels/information/sinks.h"
#include "kernels/signals/locality.h"
#include "kernels/signals/power_spectrum.h"
#include "kernels/signals/uncertainty.h"
#include "kernels/signals/wavelet.h"
#include "kernels/spectra/marchenko_pastur.h"
#include "kernels/spectra/participation_ratio.h"
#include "kernels/spectra/singular_values.h"
#include "kernels/states/alignment.h"
#include "kernels/states/reference_influence.h"
#include "matrices.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using Bits = std::vector<std::uint64_t>;

struct Inputs {
  std::vector<RowMatrix<double>> wide;
  std::vector<RowMatrix<float>> narrow;
  TriangularTable table;
};

class Record {
 public:
  void operator()(double x) { bits_.push_back(std::bit_cast<std::uint64_t>(x)); }
  void operator()(std::int64_t x) { bits_.push_back(static_cast<std::uint64_t>(x)); }
  void operator()(const std::vector<double>& values) {
    for (const double x : values) (*this)(x);
  }
  Bits take() { return std::move(bits_); }

 private:
  Bits bits_;
};

// Everything that every kernel says about one matrix, with scratch that lives for the call.
template <class Scalar>
void record(const RowMatrix<Scalar>& matrix, const TriangularTable& table, Record& write) {
  const Index n = matrix.rows();
  const MatrixView<Scalar> view = testing::view(matrix);
  const std::span<const MatrixView<Scalar>> one(&view, 1);
  const Support support = auto_support(view);
  const std::span<const Support> supports(&support, 1);
  std::vector<double> numbers(static_cast<std::size_t>(n));

  RowScratch entropy;
  Support status;
  attention_entropy(view, true, status, true, numbers.data(), entropy);
  write(numbers);
  SinkWorkspace sinks;
  SinkRequest questions;
  questions.position = true;
  questions.first = 1;
  questions.queries = n;
  questions.top = std::min<Index>(3, n);
  SinkAnswers answers;
  answers.incoming = numbers.data();
  sink_statistics(view, true, status, questions, answers, sinks);
  write(numbers);
  write(answers.position);
  write(answers.top_mass);
  write(answers.share.share);
  const auto tokens = std::make_unique<bool[]>(static_cast<std::size_t>(n));
  sink_tokens(view, support, SinkRule{}, tokens.get(), sinks);
  for (Index j = 0; j < n; ++j) write(std::int64_t{tokens[static_cast<std::size_t>(j)]});

  DivergenceWorkspace divergence;
  head_divergence(one, supports, 0, n, numbers.data(), n, divergence);
  write(numbers);

  std::vector<double> states(static_cast<std::size_t>(4 * n));
  widen_states(matrix.data(), n, Index{1}, Index{4}, Index{0}, n, true, states.data());
  const AlignedHead<Scalar> head{view, support};
  PairMoments moments;
  AlignmentWorkspace alignment;
  const Index end = std::min(n, state_rows(n));
  alignment_moments(std::span<const AlignedHead<Scalar>>(&head, 1), states.data(), 4, 0, end,
                    &moments, alignment);
  write(moments.ac);
  std::vector<double> influence(static_cast<std::size_t>(3 * n), 0.0);
  InfluenceWorkspace influences;
  reference_influence(view, support, states.data(), 4, tokens.get(), Index{1}, Index{0},
                      std::min(n, state_rows(n)),
                      Influence{influence.data(), influence.data() + n, influence.data() + 2 * n},
                      influences);
  write(influence);

  GraphOptions options;
  LaplacianWorkspace laplacian;
  laplacian_eigenvalues(view, options, n, numbers.data(), laplacian);
  write(numbers);
  FiedlerWorkspace fiedler;
  for (const bool normalized : {false, true}) {
    options.normalized = normalized;
    double value = 0.0;
    fiedler_values(one, options, Precision::exact, &value, fiedler);
    write(value);
  }
  fiedler_vector(view, options, numbers.data(), fiedler);
  write(numbers);

  SingularValuesWorkspace singular;
  double* const places[] = {numbers.data()};
  singular_values(one, std::span<double* const>(places), singular);
  write(numbers);
  ParticipationRatioWorkspace ratio;
  write(participation_ratio_singular(view, ratio));
  write(participation_ratio_eigen(view, ratio));
  write(participation_ratio_laplacian(view, ratio));
  MarchenkoPasturWorkspace deviation;
  for (const SpectralNull null : {SpectralNull::automatic, SpectralNull::permutation}) {
    MarchenkoPasturOptions wanted;
    wanted.null = null;
    wanted.draws = 3;
    wanted.triangular = &table;
    MarchenkoPastur found;
    marchenko_pastur(one, supports, wanted, std::span<MarchenkoPastur>(&found, 1), deviation);
    write(found.ks);
    write(found.wasserstein);
    write(found.p_value);
  }

  const double thresholds[] = {0.01, 0.05, 0.2};
  GraphStatistics statistics[3];
  GraphStatisticsWorkspace graphs;
  graph_statistics(view, thresholds, 3, statistics, graphs);
  finish_graph_statistics(graphs);
  for (const GraphStatistics& of : statistics) {
    write({of.fiedler_value, of.laplacian_gap, of.density, of.hub_share, of.gini, of.centralization,
           of.degree_variance, of.star_likeness, of.in_degree_gini, of.in_degree_centralization});
  }
  std::int64_t numbers_of_holes[6];
  BettiWorkspace betti;
  betti_numbers(view, Symmetrize::max, thresholds, 3, numbers_of_holes, betti);
  for (const std::int64_t number : numbers_of_holes) write(number);
  PersistenceWorkspace persistent;
  std::vector<Bar> bars;
  for (const Metric metric : {Metric::attention, Metric::hellinger}) {
    PersistenceOptions bars_options;
    bars_options.metric = metric;
    persistence(view, bars_options, persistent, bars);
  }
  for (const Bar& bar : bars) {
    write(bar.birth);
    write(bar.death);
  }

  RowScratch local;
  write(local_global_ratio(view, support, 4, false, local));
  SignalOptions signal;
  signal.kind = SignalOptions::Kind::last;
  signal.min_keys = 8;
  std::vector<double> fields(32, 0.0);
  SpectrumOptions spectrum;
  spectrum.signal = signal;
  SpectrumScratch spectral;
  power_spectrum(view, support, spectrum, fields.data(), spectral);
  write(fields);
  UncertaintyScratch uncertain;
  uncertainty(view, support, signal, true, fields.data(), uncertain);
  write(fields);
  WaveletOptions wavelet;
  wavelet.signal = signal;
  wavelet.levels = std::max<Index>(1, wavelet_levels(n));
  fields.assign(static_cast<std::size_t>(wavelet_fields(wavelet.levels)), 0.0);
  WaveletScratch waves;
  wavelet_transform(view, support, wavelet, fields.data(), static_cast<double*>(nullptr), waves);
  write(fields);
}

Bits record_all(const Inputs& inputs) {
  Record write;
  for (const auto& matrix : inputs.wide) record(matrix, inputs.table, write);
  for (const auto& matrix : inputs.narrow) record(matrix, inputs.table, write);
  return write.take();
}

TEST(Threads, EveryKernelFromEightThreadsGivesTheBitsOfOne) {
  Inputs inputs;
  for (const Index n : {9, 40, 70}) {
    for (const bool causal : {false, true}) {
      inputs.wide.push_back(testing::random_attention(n, causal, unsigned(n)));
      inputs.narrow.push_back(
          testing::random_attention(n, causal, unsigned(n + 1), 3.0).cast<float>());
    }
  }
  const Bits alone = record_all(inputs);
  EXPECT_GT(alone.size(), 1000u);
  std::vector<Bits> found(8);
  std::vector<std::thread> threads;
  for (Bits& mine : found) threads.emplace_back([&] { mine = record_all(inputs); });
  for (std::thread& thread : threads) thread.join();
  for (const Bits& mine : found) EXPECT_EQ(mine, alone);
}

}  // namespace
}  // namespace attnscope
