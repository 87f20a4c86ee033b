// SPDX-License-Identifier: MIT
#include "kernels/lazy_attention/lazy_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "matrices.h"

namespace attnscope {
namespace {

using testing::RowMatrix;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LazyHead head_of(const RowMatrix<float>& query, const RowMatrix<float>& key) {
  LazyHead head;
  head.query = {query.data(), VectorType::float32, query.cols(), 1};
  head.key = {key.data(), VectorType::float32, key.cols(), 1};
  head.queries = query.rows();
  head.keys = key.rows();
  head.width = query.cols();
  head.length = key.rows();
  head.sink_logit = -kInfinity;
  return head;
}

RowMatrix<float> random_rows(Index rows, Index width, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  return RowMatrix<float>::NullaryExpr(rows, width, [&] { return normal(generator); });
}

// The map by the definition, in float64.
RowMatrix<double> dense(const LazyHead& head, const RowMatrix<float>& query,
                        const RowMatrix<float>& key) {
  RowMatrix<double> map = RowMatrix<double>::Zero(head.queries, head.keys);
  for (Index i = 0; i < head.queries; ++i) {
    double z = std::exp(head.sink_logit);
    for (Index j = 0; j < head.keys; ++j) {
      if (!head.sees(i, j)) continue;
      double score = head.scaling * query.row(i).cast<double>().dot(key.row(j).cast<double>());
      if (head.softcap > 0.0) score = head.softcap * std::tanh(score / head.softcap);
      score -= head.slope * static_cast<double>(std::abs(head.position(i) - j));
      z += map(i, j) = std::exp(score);
    }
    if (z > 0.0) map.row(i) /= z;
  }
  return map;
}

struct Measured {
  std::vector<double> entropy, largest, mass, distance;
  LazyColumns columns;
  LazyEntries entries;
};

Measured measure(const LazyHead& head, LazyRequest request) {
  const auto count = static_cast<std::size_t>(head.queries);
  Measured measured;
  for (auto* values : {&measured.entropy, &measured.largest, &measured.mass, &measured.distance}) {
    values->assign(count, -1.0);
  }
  LazyRows rows;
  rows.entropy = measured.entropy.data();
  rows.largest = measured.largest.data();
  rows.mass = measured.mass.data();
  rows.distance = measured.distance.data();
  request.columns = true;
  LazyWorkspace workspace;
  measure_lazy_rows(head, 0, head.queries, request, rows, measured.columns, measured.entries,
                    workspace);
  return measured;
}

void expect_measures_of(const RowMatrix<double>& map, const LazyHead& head, bool exact) {
  LazyRequest request;
  request.exact = exact;
  const Measured measured = measure(head, request);
  const double tolerance = exact ? 1e-12 : 2e-5;
  for (Index i = 0; i < head.queries; ++i) {
    double entropy = 0.0, distance = 0.0;
    for (Index j = 0; j < head.keys; ++j) {
      if (map(i, j) > 0.0) entropy -= map(i, j) * std::log(map(i, j));
      distance += map(i, j) * static_cast<double>(std::abs(head.position(i) - j));
    }
    EXPECT_NEAR(measured.entropy[i], entropy, tolerance) << i;
    EXPECT_NEAR(measured.distance[i], distance, tolerance * (1.0 + distance)) << i;
    EXPECT_NEAR(measured.largest[i], map.row(i).maxCoeff(), tolerance) << i;
    EXPECT_NEAR(measured.mass[i], map.row(i).sum(), tolerance) << i;
  }
  for (Index j = 0; j < head.keys; ++j) {
    EXPECT_NEAR(measured.columns.incoming[j], map.col(j).sum(), tolerance * 100.0) << j;
    EXPECT_NEAR(measured.columns.squares[j], map.col(j).squaredNorm(), tolerance * 100.0) << j;
  }
}

TEST(LazyAttention, EqualsTheMapAtEverySizeAndRule) {
  for (const Index keys : {1, 2, 5, 31, 96, 97, 200}) {
    for (const Index queries : {Index{1}, (keys + 1) / 2, keys}) {
      const RowMatrix<float> query = random_rows(queries, 9, 1), key = random_rows(keys, 9, 2);
      for (int rule = 0; rule < 6; ++rule) {
        LazyHead head = head_of(query, key);
        head.causal = rule != 1;
        if (rule == 2) head.window = 7;
        if (rule == 3) head.softcap = 1.5;
        if (rule == 4) head.slope = 0.2;
        if (rule == 5) head.sink_logit = 1.0;
        const RowMatrix<double> map = dense(head, query, key);
        for (const bool exact : {false, true}) expect_measures_of(map, head, exact);
      }
    }
  }
}

TEST(LazyAttention, EqualKeysGiveUniformRows) {
  const RowMatrix<float> query = random_rows(300, 4, 3), key = RowMatrix<float>::Zero(300, 4);
  LazyRequest request;
  request.exact = true;
  const Measured measured = measure(head_of(query, key), request);
  EXPECT_EQ(measured.entropy[0], 0.0);
  double harmonic = 0.0;
  for (Index i = 299; i >= 0; --i) {
    harmonic += 1.0 / static_cast<double>(i + 1);
    EXPECT_NEAR(measured.entropy[i], std::log(static_cast<double>(i + 1)), 1e-13);
    EXPECT_NEAR(measured.columns.incoming[i], harmonic, 1e-12);
  }
}

TEST(LazyAttention, EntriesAreThoseOfTheMapInItsOrder) {
  const RowMatrix<float> query = 3.0f * random_rows(130, 8, 4), key = random_rows(130, 8, 5);
  const LazyHead head = head_of(query, key);
  const RowMatrix<double> map = dense(head, query, key);
  LazyRequest request;
  request.exact = true;
  request.threshold = 0.05;
  const Measured measured = measure(head, request);
  std::size_t entry = 0;
  for (Index i = 0; i < 130; ++i) {
    Index count = 0;
    for (Index j = 0; j < 130; ++j) {
      if (map(i, j) < request.threshold) continue;
      ASSERT_LT(entry, measured.entries.keys.size());
      EXPECT_EQ(measured.entries.keys[entry], j);
      EXPECT_NEAR(measured.entries.weights[entry], map(i, j), 1e-12);
      ++entry;
      ++count;
    }
    EXPECT_EQ(measured.entries.counts[i], count);
  }
  EXPECT_EQ(entry, measured.entries.keys.size());
}

TEST(LazyAttention, NaNStaysWithTheQueriesThatSeeIt) {
  const RowMatrix<float> query = random_rows(100, 6, 6);
  RowMatrix<float> key = random_rows(100, 6, 7);
  const Measured clean = measure(head_of(query, key), {});
  key(40, 2) = std::numeric_limits<float>::quiet_NaN();
  LazyHead head = head_of(query, key);
  head.window = 20;
  const Measured measured = measure(head, {});
  for (Index i = 0; i < 100; ++i) {
    EXPECT_EQ(std::isnan(measured.entropy[i]), i >= 40 && i < 60) << i;
    EXPECT_EQ(std::isnan(measured.columns.incoming[i]), i >= 21 && i < 60) << i;
    if (i < 20) {
      EXPECT_EQ(measured.entropy[i], clean.entropy[i]);
    }
  }
}

TEST(LazyAttention, ANaNKeyThatNoQuerySeesReachesNoColumn) {
  // 70 queries leave lanes of the last block without one.
  const RowMatrix<float> query = random_rows(70, 6, 14);
  RowMatrix<float> key = random_rows(70, 6, 15);
  key(69, 0) = std::numeric_limits<float>::quiet_NaN();
  const RowMatrix<float> few = query.topRows(5);
  std::vector<std::int64_t> positions{3, 9, 12, 20, 40};
  LazyHead head = head_of(few, key);
  head.positions = positions.data();
  const Measured measured = measure(head, {});
  for (Index j = 0; j < 70; ++j) EXPECT_FALSE(std::isnan(measured.columns.incoming[j])) << j;
}

TEST(LazyAttention, PaddingIsNeitherReadNorWritten) {
  RowMatrix<float> query = random_rows(100, 6, 8), key = random_rows(100, 6, 9);
  query.bottomRows(40).setConstant(std::numeric_limits<float>::quiet_NaN());
  key.bottomRows(40).setConstant(std::numeric_limits<float>::quiet_NaN());
  LazyHead head = head_of(query, key);
  head.length = 60;
  const Measured measured = measure(head, {});
  for (Index i = 0; i < 100; ++i) {
    EXPECT_EQ(measured.mass[i] == -1.0, i >= 60) << i;
    EXPECT_EQ(measured.columns.incoming[i] == 0.0, i >= 60) << i;
    EXPECT_FALSE(std::isnan(measured.columns.incoming[i]));
  }
}

TEST(LazyAttention, AQueryThatSeesNothingHasNoWeight) {
  const RowMatrix<float> query = random_rows(40, 6, 10), key = random_rows(40, 6, 11);
  std::vector<char> mask(40 * 40, 1);
  std::fill_n(mask.begin() + 7 * 40, 40, char{0});
  LazyHead head = head_of(query, key);
  head.mask = reinterpret_cast<const bool*>(mask.data());
  head.mask_row_stride = 40;
  head.mask_column_stride = 1;
  expect_measures_of(dense(head, query, key), head, true);
  const Measured measured = measure(head, {});
  EXPECT_EQ(measured.mass[7], 0.0);
  EXPECT_EQ(measured.entropy[7], 0.0);
}

TEST(LazyAttention, PiecesGiveTheRowsOfTheWhole) {
  const RowMatrix<float> query = random_rows(300, 6, 12), key = random_rows(300, 6, 13);
  const LazyHead head = head_of(query, key);
  const Measured measured = measure(head, {});
  const Index border = 2 * lazy_rows(false);
  std::vector<double> entropy(300);
  LazyRows rows;
  rows.entropy = entropy.data();
  LazyRequest request;
  request.columns = true;
  LazyWorkspace workspace;
  LazyEntries entries;
  LazyColumns first, second;
  measure_lazy_rows(head, border, 300, request, rows, second, entries, workspace);
  measure_lazy_rows(head, 0, border, request, rows, first, entries, workspace);
  EXPECT_EQ(entropy, measured.entropy);
  for (Index j = 0; j < 300; ++j) {
    EXPECT_NEAR(first.incoming[j] + second.incoming[j], measured.columns.incoming[j], 1e-12);
  }
}

TEST(LazyAttention, MeanOfHeadsIsThatOfTheirMaps) {
  const Index n = 131, width = 12, count = 3;
  std::vector<RowMatrix<float>> queries, keys;
  for (unsigned k = 0; k < count; ++k) {
    queries.push_back(random_rows(n, width, 20 + k) * static_cast<float>(k + 1));
    keys.push_back(random_rows(n, width, 30 + k));
  }
  for (const double sink_logit : {-kInfinity, 0.5}) {
    std::vector<LazyHead> heads;
    std::vector<double> log_z(count * n);
    RowMatrix<double> mean = RowMatrix<double>::Zero(n, n);
    std::vector<RowMatrix<double>> maps;
    for (Index k = 0; k < count; ++k) {
      heads.push_back(head_of(queries[k], keys[k]));
      heads.back().scaling = 0.5;
      // Heads whose sinks differ, or their mean would be that of any of them.
      heads.back().sink_logit = sink_logit + static_cast<double>(k);
      maps.push_back(dense(heads.back(), queries[k], keys[k]));
      mean += maps.back() / count;
      LazyRequest request;
      request.exact = true;
      LazyRows rows;
      rows.log_z = log_z.data() + k * n;
      LazyColumns columns;
      LazyEntries entries;
      LazyWorkspace workspace;
      measure_lazy_rows(heads.back(), 0, n, request, rows, columns, entries, workspace);
    }
    std::vector<double> entropy(n), mass(n), largest(n), divergence(count * n);
    LazyRequest request;
    request.exact = true;
    request.columns = true;
    LazyRows rows;
    rows.entropy = entropy.data();
    rows.mass = mass.data();
    rows.largest = largest.data();
    LazyColumns columns;
    LazyEntries entries;
    LazyWorkspace workspace;
    measure_lazy_mean_rows({heads.data(), count, log_z.data(), divergence.data()}, 0, n, request,
                           rows, columns, entries, workspace);
    const auto logarithm = [](double x) { return x > 0.0 ? std::log(x) : 0.0; };
    for (Index i = 0; i < n; ++i) {
      double expected = 0.0;
      for (Index j = 0; j < n; ++j) expected -= mean(i, j) * logarithm(mean(i, j));
      EXPECT_NEAR(entropy[i], expected, 1e-10);
      EXPECT_NEAR(mass[i], mean.row(i).sum(), 1e-12);
      EXPECT_NEAR(largest[i], mean.row(i).maxCoeff(), 1e-12);
      EXPECT_NEAR(columns.incoming[i], mean.col(i).sum(), 1e-10);
      for (Index k = 0; k < count; ++k) {
        double apart = 0.0;
        for (Index j = 0; j < n; ++j)
          apart += maps[k](i, j) * (logarithm(maps[k](i, j)) - logarithm(mean(i, j)));
        EXPECT_NEAR(divergence[k * n + i], apart, 1e-10);
      }
    }
  }
}

}  // namespace
}  // namespace attnscope
