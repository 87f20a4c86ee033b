// SPDX-License-Identifier: MIT
// What works along a row, for every count that a caller can form: from two vectors below zero to
// two above. Every row is an allocation of its own length, so that the sanitizers see a number read
// or written beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "graphs/graph_rows.h"
#include "linalg/gram.h"
#include "linalg/lanczos/shifted_lanczos.h"
#include "linalg/packed_tridiagonal.h"
#include "linalg/panel_tridiagonal.h"
#include "matrix/row_logs.h"
#include "matrix/row_products.h"
#include "random_matrices/standard_rows.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

constexpr Index kMost = 2 * kPackWidth;

// 1, 2, 3, …: exact in every type, and none is 0.
template <class T>
std::vector<T> row_of(Index count) {
  std::vector<T> row(static_cast<std::size_t>(std::max<Index>(count, 0)));
  for (std::size_t k = 0; k < row.size(); ++k) row[k] = static_cast<T>(k + 1);
  return row;
}

template <class T>
class RowCounts : public ::testing::Test {};
using WideTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(RowCounts, WideTypes);

TYPED_TEST(RowCounts, AHeadHoldsSoManyEntriesAndThenZeros) {
  for (Index readable = -kMost; readable <= kMost; ++readable) {
    const auto row = row_of<TypeParam>(readable);
    for (Index count = -kMost; count <= std::max<Index>(readable, 0); ++count) {
      const Lanes head = load_head(row.data(), count, readable);
      for (Index k = 0; k < kPackWidth; ++k) {
        EXPECT_EQ(head[k], k < count ? static_cast<double>(k + 1) : 0.0)
            << count << " of " << readable;
      }
    }
  }
}

// Zeros, not −0 and not what a NaN leaves: the entries behind the head are masked, never
// multiplied.
TYPED_TEST(RowCounts, WhatIsBehindAHeadDoesNotMatter) {
  const std::vector<TypeParam> row(static_cast<std::size_t>(kPackWidth),
                                   -std::numeric_limits<TypeParam>::quiet_NaN());
  for (Index count = -kMost; count <= 0; ++count) {
    const Lanes head = load_head(row.data(), count, kPackWidth);
    for (Index k = 0; k < kPackWidth; ++k) {
      EXPECT_EQ(head[k], 0.0);
      EXPECT_FALSE(std::signbit(head[k]));
    }
  }
}

TYPED_TEST(RowCounts, TwoLanesAtATimeSeeEveryEntryOnce) {
  for (Index n = 0; n <= 2 * kMost; ++n) {
    const auto row = row_of<TypeParam>(n);
    for (Index end = -kMost; end <= n; ++end) {
      double total = 0.0;
      Index visits = 0;
      for_each_two_lanes(row.data(), end, n, [&](Lanes a, Lanes b, Index j) {
        EXPECT_EQ(j, 2 * kPackWidth * visits++);
        total += sum_of_lanes(a) + sum_of_lanes(b);
      });
      const Index keys = std::max<Index>(end, 0);
      EXPECT_EQ(total, static_cast<double>(keys * (keys + 1) / 2)) << end << " of " << n;
      EXPECT_EQ(visits, (keys + kMost - 1) / kMost) << end << " of " << n;
    }
  }
}

TYPED_TEST(RowCounts, EntropiesAndCrossEntropiesOfNothingAreZero) {
  const std::vector<double> logs(static_cast<std::size_t>(kMost), 1.0);
  for (Index n = 0; n <= kMost; ++n) {
    const auto row = row_of<TypeParam>(n);
    for (Index end = -kMost; end <= n; ++end) {
      double expected = 0.0, entries = 0.0;
      for (Index k = 0; k < end; ++k) {
        expected -= static_cast<double>(k + 1) * std::log(static_cast<double>(k + 1));
        entries += static_cast<double>(k + 1);
      }
      std::vector<double> mass(static_cast<std::size_t>(kMost), 0.0);
      EXPECT_NEAR(row_entropy(row.data(), end, n, mass.data()), expected, 1e-13 * (1.0 - expected));
      EXPECT_EQ(row_cross(row.data(), end, n, logs.data()), entries);
      for (Index k = 0; k < kMost; ++k) {
        EXPECT_EQ(mass[static_cast<std::size_t>(k)], k < end ? static_cast<double>(k + 1) : 0.0);
      }
    }
  }
}

TEST(Counts, FirstLanes) {
  for (Index count = -kMost; count <= kMost; ++count) {
    const LaneMask mask = first_lanes(count);
    for (Index k = 0; k < kPackWidth; ++k) EXPECT_EQ(mask[k], k < count ? -1 : 0) << count;
  }
}

TEST(Counts, RowsAreWidened) {
  for (Index count = 0; count <= kMost; ++count) {
    const auto narrow = row_of<Eigen::bfloat16>(count);
    const auto half = row_of<Eigen::half>(count);
    auto wide = row_of<float>(count), expected = wide;
    std::fill(wide.begin(), wide.end(), -1.0F);
    widen_run(narrow.data(), count, wide.data());
    EXPECT_EQ(wide, expected);
    std::fill(wide.begin(), wide.end(), -1.0F);
    widen_run(half.data(), count, wide.data());
    EXPECT_EQ(wide, expected);
  }
}

TEST(Counts, NonZeroAndLargestOfNothing) {
  for (Index count = -kMost; count <= kMost; ++count) {
    auto row = row_of<double>(count);
    EXPECT_EQ(any_nonzero(row.data(), count, 1), count > 0);
    EXPECT_EQ(largest_magnitude(row.data(), count), static_cast<double>(std::max<Index>(count, 0)));
    EXPECT_EQ(strand_sum(count, [&](Index j) { return row[static_cast<std::size_t>(j)]; }),
              count > 0 ? static_cast<double>(count * (count + 1) / 2) : 0.0);
    EXPECT_EQ(standardize_row(row.data(), count), count > 1);
  }
}

TEST(Counts, LanesAreStandardised) {
  for (Index count = -kMost; count <= kMost; ++count) {
    AlignedBuffer buffer;
    Lanes* row = lane_buffer(buffer, std::max<Index>(count, 0));
    for (Index k = 0; k < count; ++k) row[k] = broadcast(static_cast<double>(k));
    EXPECT_EQ(any(standardize_lanes(row, count)), count > 1) << count;
    Lanes squares{};
    for (Index k = 0; k < count; ++k) squares += row[k] * row[k];
    for (Index k = 0; k < kPackWidth; ++k) {
      EXPECT_NEAR(squares[k], count > 1 ? static_cast<double>(count) : 0.0,
                  1e-13 * static_cast<double>(kMost));
    }
  }
}

// Tiles of rows and of columns against their definition, of every size up to one tile and past it.
TEST(Counts, TilesHoldRowsOrColumnsAndThenZeros) {
  for (const Index depth : {-kPackWidth, Index{0}, Index{1}, Index{3}, Index{4}, Index{9}}) {
    const Index deep = std::max<Index>(depth, 0);
    for (Index count = 0; count <= kTileWidth + kMost; ++count) {
      const auto matrix = row_of<double>(count * deep);
      const auto at = [&](Index k) { return matrix[static_cast<std::size_t>(k)]; };
      std::vector<double> tile(static_cast<std::size_t>(deep * kTileWidth), -1.0);
      const auto entry = [&](Index k, Index c) {
        return tile[static_cast<std::size_t>(k * kTileWidth + c)];
      };
      if (count <= kTileWidth) {
        pack_rows(matrix.data(), count, deep, depth, tile.data());
        for (Index k = 0; k < deep; ++k) {
          for (Index c = 0; c < kTileWidth; ++c)
            ASSERT_EQ(entry(k, c), c < count ? at(c * deep + k) : 0.0);
        }
      }
      std::fill(tile.begin(), tile.end(), -1.0);
      pack_columns(matrix.data(), count, count, depth, tile.data());
      for (Index k = 0; k < deep; ++k) {
        for (Index c = 0; c < kTileWidth; ++c)
          ASSERT_EQ(entry(k, c), c < count ? at(k * count + c) : 0.0);
      }
    }
  }
}

TEST(Counts, ProductsOfOneToFourRows) {
  for (Index count = 1; count <= kTileRows; ++count) {
    for (Index depth = -kMost; depth <= kMost; ++depth) {
      const Index deep = std::max<Index>(depth, 0);
      const auto rows = row_of<double>(count * deep);
      const auto tile = row_of<double>(deep * kTileWidth);
      for (const bool add : {false, true}) {
        std::vector<double> out(static_cast<std::size_t>(count * kTileWidth), 0.5);
        multiply_tile(rows.data(), count, deep, tile.data(), depth, add, out.data(), kTileWidth);
        for (Index r = 0; r < count; ++r) {
          for (Index c = 0; c < kTileWidth; ++c) {
            double expected = add ? 0.5 : 0.0;
            for (Index k = 0; k < deep; ++k) {
              expected += static_cast<double>(r * deep + k + 1) *
                          static_cast<double>(k * kTileWidth + c + 1);
            }
            ASSERT_EQ(out[static_cast<std::size_t>(r * kTileWidth + c)], expected);
          }
        }
      }
    }
  }
}

TEST(Counts, WholeTilesAndPanels) {
  for (Index n = 0; n <= 3 * kPanel; ++n) {
    EXPECT_EQ(whole_tiles(n), panels_of(n) * kPanel);
    EXPECT_GE(whole_tiles(n), n);
    EXPECT_LT(whole_tiles(n), n + kTileWidth);
  }
}

// −2 W to 2 W is also what a caller forms as a number of vectors.
TEST(Counts, PaddedVectors) {
  for (Index vectors = 0; vectors <= kMost; ++vectors) {
    const Index padded = vectors * kPackWidth;
    AlignedBuffer first, second;
    double* x = first.resize(padded);
    double* y = second.resize(padded);
    for (Index k = 0; k < padded; ++k) x[k] = static_cast<double>(k + 1), y[k] = 1.0;
    EXPECT_EQ(inner_product(x, y, padded), static_cast<double>(padded * (padded + 1) / 2));
    add_multiple(y, 2.0, x, padded);
    for (Index k = 0; k < padded; ++k) ASSERT_EQ(y[k], static_cast<double>(2 * k + 3));
    for (Index count = -kMost; count <= 0; ++count) {
      remove_parts(x, count, padded, y);
      subtract_multiples(x, nullptr, count, padded, padded, y);
      inner_products(x, count, padded, padded, y, nullptr);
    }
    for (Index k = 0; k < padded; ++k) ASSERT_EQ(y[k], static_cast<double>(2 * k + 3));
  }
}

// The sums of whole vectors, and masks, in every lane.
TEST(Counts, SumsOfEveryVectorStandInItsLane) {
  Lanes rows[kPackWidth];
  for (Index r = 0; r < kPackWidth; ++r) {
    for (Index k = 0; k < kPackWidth; ++k) rows[r][k] = static_cast<double>(r * 100 + k);
  }
  const Lanes sums = row_sums(rows);
  for (Index r = 0; r < kPackWidth; ++r) {
    EXPECT_EQ(sums[r],
              static_cast<double>(kPackWidth * r * 100 + kPackWidth * (kPackWidth - 1) / 2));
    EXPECT_EQ(row_tops(rows)[r], static_cast<double>(r * 100 + kPackWidth - 1));
  }
}

TEST(Counts, TheLogarithmOfWhatIsNoNumberIsSomeNumber) {
  const double odd[] = {std::nan(""),
                        -std::nan(""),
                        -1.0,
                        -0.0,
                        0.0,
                        std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::denorm_min()};
  for (const double x : odd) {
    const Lanes log = bounded_log(broadcast(x));
    for (Index k = 0; k < kPackWidth; ++k) EXPECT_TRUE(std::isfinite(log[k])) << x;
  }
}

#if !defined(NDEBUG)
// What no caller may ask for ends in words where assertions are on.
TEST(CountsDeathTest, CountsThatMeanNothingAreRefused) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  double row[2 * kTileWidth] = {};
  AlignedBuffer buffer;
  Lanes* lanes = lane_buffer(buffer, 8);
  EXPECT_DEATH(load_head(row, 3, 2), "count <= ");
  EXPECT_DEATH(multiply_tile(row, 0, 1, row, 1, false, row, 1), "1 <= count");
  EXPECT_DEATH(multiply_tile(row, kTileRows + 1, 1, row, 1, false, row, 1), "count <= kTileRows");
  EXPECT_DEATH(pack_rows(row, -1, 1, 1, row), "0 <= count");
  EXPECT_DEATH(pack_rows(row, kTileWidth + 1, 1, 1, row), "count <= kTileWidth");
  EXPECT_DEATH(pack_columns(row, -1, 1, 1, row), "count >= 0");
  EXPECT_DEATH(whole_tiles(-1), "columns >= 0");
  EXPECT_DEATH(panels_of(-1), "n >= 0");
  EXPECT_DEATH(panel_entry(2, 1), "row <= column");
  EXPECT_DEATH(inner_product(row, row, kPackWidth + 1), "padded");
  EXPECT_DEATH(add_multiple(row, 1.0, row, -kPackWidth), "padded");
  EXPECT_DEATH(buffer.resize(-1), "size >= 0");
  EXPECT_DEATH(widen_run(row, -1, row), "count >= 0");
  EXPECT_DEATH(tridiagonalize(lanes, 0, lanes, lanes, 1, lanes), "n >= 1");
  EXPECT_DEATH(largest_eigenvalue(row, row, kMostLanczosSteps + 1), "kMostLanczosSteps");
}
#endif

}  // namespace
}  // namespace attnscope
