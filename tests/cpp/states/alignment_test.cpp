// SPDX-License-Identifier: MIT
#include "kernels/states/alignment.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "matrices.h"
#include "matrix/widen.h"

namespace attnscope {
namespace {

using testing::RowMatrix;
using testing::view;

RowMatrix<double> unit_rows(Index n, Index d, unsigned seed) {
  RowMatrix<double> states(n, d);
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  for (Index k = 0; k < n * d; ++k) states.data()[k] = normal(generator);
  RowMatrix<double> unit(n, d);
  EXPECT_TRUE(widen_states(states.data(), d, 1, d, 0, n, true, unit.data()));
  return unit;
}

double aligned(const AlignedHead<double>& head, const RowMatrix<double>& unit, Index rows) {
  const Index n = head.attention.rows();
  AlignmentWorkspace workspace;
  std::vector<PairMoments> parts;
  for (Index begin = 0; begin < n; begin += rows) {
    PairMoments part;
    alignment_moments(std::span<const AlignedHead<double>>(&head, 1), unit.data(), unit.data(),
                      unit.cols(), begin, std::min(n, begin + rows), &part, workspace);
    parts.push_back(part);
  }
  return alignment_of(parts);
}

TEST(Alignment, EqualsTheTextbookFormulaInAnyBlocks) {
  constexpr Index n = 37;
  const RowMatrix<double> a = testing::random_attention(n, true, 3);
  const RowMatrix<double> unit = unit_rows(n, 5, 4);
  AlignedHead<double> head{view(a), {}};
  head.support.kind = Support::Kind::causal;
  std::vector<double> x;
  std::vector<double> y;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < i; ++j) {
      x.push_back(a(i, j));
      y.push_back(unit.row(i).dot(unit.row(j)));
    }
  }
  const Eigen::Map<Eigen::ArrayXd> ax(x.data(), Index(x.size()));
  const Eigen::Map<Eigen::ArrayXd> ay(y.data(), Index(y.size()));
  const Eigen::ArrayXd dx = ax - ax.mean();
  const Eigen::ArrayXd dy = ay - ay.mean();
  const double expected = (dx * dy).sum() / std::sqrt(dx.square().sum() * dy.square().sum());
  for (Index rows : {1, 5, 16, 37}) EXPECT_NEAR(aligned(head, unit, rows), expected, 1e-13) << rows;
}

// Pearson's r over the pairs that `head` sees, in long double.
double textbook(const AlignedHead<double>& head, const RowMatrix<double>& unit) {
  std::vector<long double> x;
  std::vector<long double> y;
  const Index n = head.attention.rows();
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      if (i == j || !head.support.visible(i, j)) continue;
      if (head.without != nullptr && head.without[j]) continue;
      if (unit.row(i).isZero(0.0) || unit.row(j).isZero(0.0)) continue;
      x.push_back(head.attention(i, j));
      y.push_back(unit.row(i).cast<long double>().dot(unit.row(j).cast<long double>()));
    }
  }
  const Eigen::Map<Eigen::Array<long double, Eigen::Dynamic, 1>> ax(x.data(), Index(x.size()));
  const Eigen::Map<Eigen::Array<long double, Eigen::Dynamic, 1>> ay(y.data(), Index(y.size()));
  const auto dx = (ax - ax.mean()).eval();
  const auto dy = (ay - ay.mean()).eval();
  return double((dx * dy).sum() / std::sqrt(dx.square().sum() * dy.square().sum()));
}

TEST(Alignment, EverySizeBesideAPanelOfTokensAndOfNumbers) {
  // Panels hold 6, 12 or 24 tokens, and 192 numbers of each are summed in one go.
  for (Index n : {5, 6, 7, 11, 12, 13, 23, 24, 25, 47, 48, 49, 97}) {
    for (Index width : {1, 3, 64, 191, 192, 193, 400}) {
      const RowMatrix<double> full = testing::random_attention(n, false, unsigned(n + width));
      const RowMatrix<double> causal = testing::random_attention(n, true, unsigned(n + width));
      RowMatrix<double> unit = unit_rows(n, width, unsigned(n * width));
      if (width == 64) unit.row(n / 2).setZero();
      std::vector<char> flags(static_cast<std::size_t>(n), 0);
      flags[0] = flags[static_cast<std::size_t>(n / 3)] = 1;
      std::vector<AlignedHead<double>> heads = {
          {view(full), {}}, {view(causal), {}}, {view(causal), {}}};
      heads[1].support.kind = heads[2].support.kind = Support::Kind::causal;
      heads[2].without = reinterpret_cast<const bool*>(flags.data());
      heads[2].without_stride = 1;
      for (const auto& head : heads) {
        const double expected = textbook(head, unit);
        if (width == 1 || n < 6) {  // cosines of ±1, or two pairs: they may not vary
          EXPECT_TRUE(std::isnan(aligned(head, unit, 64)) || std::isfinite(expected));
          continue;
        }
        EXPECT_NEAR(aligned(head, unit, 64), expected, 1e-13) << n << " tokens of " << width;
        EXPECT_NEAR(aligned(head, unit, 7), expected, 1e-13) << n << " tokens of " << width;
      }
    }
  }
}

// Numbers of NumPy, for a full map whose entries are exact:
//   for n in (3, 8, 100):
//       i, j = np.indices((n, n))
//       attention = ((7 * i + 3 * j + i * j) % 11 + 1) / 16
//       i, k = np.indices((n, 5))
//       states = (5 * i + 3 * k + i * i * k) % 13 - 6.0
//       unit = states / np.linalg.norm(states, axis=1, keepdims=True)
//       pairs = ~np.eye(n, dtype=bool)
//       print(n, repr(np.corrcoef(attention[pairs], (unit @ unit.T)[pairs])[0, 1]))
TEST(Alignment, AFullMapHasTheCorrelationThatNumPyFinds) {
  constexpr Index kStates = 5;
  for (const auto& [n, expected] : {std::pair<Index, double>{3, -0.31776697908449564},
                                    {8, 0.1347175546109461},
                                    {100, 0.0012979051143905687}}) {
    RowMatrix<double> a(n, n), states(n, kStates), unit(n, kStates);
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < n; ++j) {
        a(i, j) = static_cast<double>((7 * i + 3 * j + i * j) % 11 + 1) / 16.0;
      }
      for (Index k = 0; k < kStates; ++k) {
        states(i, k) = static_cast<double>((5 * i + 3 * k + i * i * k) % 13) - 6.0;
      }
    }
    ASSERT_TRUE(widen_states(states.data(), kStates, 1, kStates, 0, n, true, unit.data()));
    for (const Index rows : {1, 7, 64}) {
      EXPECT_NEAR(aligned({view(a), {}}, unit, rows), expected, 1e-14)
          << n << " tokens, rows by " << rows;
    }
    // A column-major map of float32 is read through the panel of a RowReader.
    const Eigen::MatrixXf columns = a.cast<float>();
    const AlignedHead<float> head{matrix_view(columns.data(), n, Index{1}, n), {}};
    PairMoments moments;
    AlignmentWorkspace workspace;
    alignment_moments(std::span<const AlignedHead<float>>(&head, 1), unit.data(), unit.data(),
                      kStates, 0, n, &moments, workspace);
    EXPECT_NEAR(alignment_of(std::span<const PairMoments>(&moments, 1)), expected, 1e-14) << n;
  }
}

TEST(Alignment, AnOutlierDoesNotDrownTheRest) {
  // One pair a thousand times the others: rows are summed from a first pair of their own.
  constexpr Index n = 64;
  RowMatrix<double> a = RowMatrix<double>::Zero(n, n);
  std::mt19937 generator(11);
  std::uniform_real_distribution<double> uniform(0.999e-3, 1e-3);
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j <= i; ++j) a(i, j) = uniform(generator);
  }
  a(1, 0) = 1.0;
  const RowMatrix<double> unit = unit_rows(n, 8, 12);
  AlignedHead<double> head{view(a), {}};
  head.support.kind = Support::Kind::causal;
  const bool flags[n] = {true};
  EXPECT_NEAR(aligned(head, unit, 64), textbook(head, unit), 1e-14);
  head.without = flags;
  head.without_stride = 1;
  EXPECT_NEAR(aligned(head, unit, 64), textbook(head, unit), 1e-13);
}

TEST(Alignment, NothingThatVariesMeansNoCorrelation) {
  const RowMatrix<double> flat = RowMatrix<double>::Constant(9, 9, 0.1);
  const RowMatrix<double> varied = testing::random_attention(9, false, 5);
  const RowMatrix<double> unit = unit_rows(9, 4, 6);
  RowMatrix<double> equal = unit.row(0).replicate(9, 1);
  EXPECT_TRUE(std::isnan(aligned({view(flat), {}}, unit, 4)));
  EXPECT_TRUE(std::isnan(aligned({view(varied), {}}, equal, 4)));
  EXPECT_FALSE(std::isnan(aligned({view(varied), {}}, unit, 4)));
}

TEST(Alignment, CosinesThatDifferByRoundingOnlyDoNotVary) {
  // Parallel states: every cosine is 1, give or take the last digit of unit vectors.
  constexpr Index n = 24;
  const RowMatrix<double> direction = RowMatrix<double>::Random(1, 7);
  RowMatrix<double> states(n, 7);
  for (Index i = 0; i < n; ++i) states.row(i) = direction * (0.37 * double(i + 1));
  RowMatrix<double> unit(n, 7);
  ASSERT_TRUE(widen_states(states.data(), 7, 1, 7, 0, n, true, unit.data()));
  ASSERT_NE(unit.row(0), unit.row(2));
  const RowMatrix<double> varied = testing::random_attention(n, false, 5);
  EXPECT_TRUE(std::isnan(aligned({view(varied), {}}, unit, 7)));
}

TEST(Alignment, TheDiagonalIsNoPair) {
  // Off the diagonal nothing varies, so there is nothing to correlate whatever stands on it.
  for (Index n = 3; n < 24; ++n) {
    RowMatrix<double> a = RowMatrix<double>::Constant(n, n, 0.1);
    a.diagonal().setConstant(0.7);
    EXPECT_TRUE(std::isnan(aligned({view(a), {}}, unit_rows(n, 4, unsigned(n)), 4))) << n;
  }
}

TEST(Alignment, AHeadGivesTheSameBitsBesideOthers) {
  constexpr Index n = 29;
  const RowMatrix<double> causal = testing::random_attention(n, true, 7);
  const RowMatrix<double> full = testing::random_attention(n, false, 8);
  const RowMatrix<double> shorter = causal.topLeftCorner(19, 19);
  const RowMatrix<double> unit = unit_rows(n, 6, 9);
  std::vector<AlignedHead<double>> heads = {
      {view(full), {}}, {view(causal), {}}, {view(shorter), {}}};
  heads[1].support.kind = heads[2].support.kind = Support::Kind::causal;
  AlignmentWorkspace workspace;
  for (Index begin = 0; begin < n; begin += 10) {
    const Index end = std::min(n, begin + 10);
    PairMoments together[3];
    alignment_moments(std::span<const AlignedHead<double>>(heads), unit.data(), unit.data(),
                      unit.cols(), begin, end, together, workspace);
    for (std::size_t h = 0; h < heads.size(); ++h) {
      PairMoments single;
      alignment_moments(std::span<const AlignedHead<double>>(&heads[h], 1), unit.data(),
                        unit.data(), unit.cols(), begin, end, &single, workspace);
      EXPECT_EQ(together[h].count, single.count) << h;
      EXPECT_EQ(together[h].ac, single.ac) << h;
      EXPECT_EQ(together[h].cc, single.cc) << h;
    }
  }
}

TEST(Alignment, HeadsSideBySideGiveTheBitsOfContiguousMaps) {
  constexpr Index kHeads = 9;
  for (const bool causal : {true, false}) {
    for (const Index n : {1, 2, 17, 40, 75}) {
      const RowMatrix<double> unit = unit_rows(n, 6, unsigned(n));
      std::vector<RowMatrix<double>> maps;
      std::vector<double> side_by_side(n * n * kHeads);
      for (Index h = 0; h < kHeads; ++h) {
        maps.push_back(testing::random_attention(n, causal, unsigned(n + h)));
        for (Index k = 0; k < n * n; ++k) side_by_side[k * kHeads + h] = maps[h].data()[k];
      }
      const double* const first = side_by_side.data();
      std::vector<AlignedHead<double>> contiguous;
      std::vector<AlignedHead<double>> strided;
      for (Index h = 0; h < kHeads; ++h) {
        contiguous.push_back({view(maps[h]), {}});
        strided.push_back({matrix_view(first + h, n, n * kHeads, kHeads), {}});
        if (causal) {
          contiguous[h].support.kind = strided[h].support.kind = Support::Kind::causal;
        }
      }
      AlignmentWorkspace workspace;
      for (Index begin = 0; begin < n; begin += 33) {
        PairMoments expected[kHeads];
        PairMoments moments[kHeads];
        PairMoments single;
        const Index end = std::min(n, begin + 33);
        alignment_moments(std::span<const AlignedHead<double>>(contiguous), unit.data(),
                          unit.data(), unit.cols(), begin, end, expected, workspace);
        alignment_moments(std::span<const AlignedHead<double>>(strided), unit.data(), unit.data(),
                          unit.cols(), begin, end, moments, workspace);
        alignment_moments(std::span<const AlignedHead<double>>(&strided[kHeads - 1], 1),
                          unit.data(), unit.data(), unit.cols(), begin, end, &single, workspace);
        for (Index h = 0; h < kHeads; ++h) {
          EXPECT_EQ(moments[h].count, expected[h].count) << n;
          EXPECT_EQ(moments[h].aa, expected[h].aa) << n;
          EXPECT_EQ(moments[h].ac, expected[h].ac) << n;
          EXPECT_EQ(moments[h].cc, expected[h].cc) << n;
        }
        EXPECT_EQ(single.ac, expected[kHeads - 1].ac) << n;
      }
    }
  }
}

TEST(Alignment, StatesOfExtremeSizeKeepTheirDirection) {
  const double huge[4] = {3e200, 4e200, 0.0, 0.0};
  double unit[4];
  EXPECT_TRUE(widen_states(huge, 2, 1, 2, 0, 2, true, unit));
  EXPECT_NEAR(unit[0], 0.6, 1e-15);
  EXPECT_NEAR(unit[1], 0.8, 1e-15);
  EXPECT_EQ(unit[2], 0.0);
  const float non_finite[2] = {1.0F, std::numeric_limits<float>::infinity()};
  EXPECT_FALSE(widen_states(non_finite, 2, 1, 2, 0, 1, false, unit));
  // A non-finite token is not forgotten over one of zeros behind it.
  const float zeros_behind[4] = {1.0F, std::numeric_limits<float>::infinity(), 0.0F, 0.0F};
  EXPECT_FALSE(widen_states(zeros_behind, 2, 1, 2, 0, 2, true, unit));
  EXPECT_TRUE(widen_states(huge, 2, 1, 2, 0, 1, false, unit));
  EXPECT_EQ(unit[0], 3e200);
}

}  // namespace
}  // namespace attnscope
