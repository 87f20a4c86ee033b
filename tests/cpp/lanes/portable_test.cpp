// SPDX-License-Identifier: MIT
// Where an instruction stands for a loop, both give the same.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "graphs/threshold_levels.h"
#include "homology/bit_row.h"
#include "matrix/row_products.h"
#include "matrix/rows.h"
#include "simd/number_lanes.h"

namespace attnscope {
namespace {

TEST(Portable, TheWidthIsTheOneAskedFor) {
  EXPECT_EQ(kPackWidth, ATTNSCOPE_PACK_WIDTH);
  EXPECT_EQ(sizeof(Lanes), static_cast<std::size_t>(kPackWidth) * sizeof(double));
}

TEST(Portable, FloatsAreWidened) {
  std::mt19937 generator(1);
  for (int time = 0; time < 1000; ++time) {
    float from[kPackWidth];
    // Any bits: subnormal numbers, infinities and NaN among them.
    for (float& x : from) x = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
    const Lanes loaded = load(from), expected = portable::load(from);
    for (Index k = 0; k < kPackWidth; ++k) {
      if (std::isnan(from[k])) {
        EXPECT_TRUE(std::isnan(loaded[k]) && std::isnan(expected[k]));
      } else {
        EXPECT_EQ(loaded[k], static_cast<double>(from[k]));
        EXPECT_EQ(expected[k], static_cast<double>(from[k]));
      }
    }
  }
}

template <class Vector>
void expect_every_bit() {
  constexpr std::size_t kCount = sizeof(Vector) / sizeof(Vector{}[0]);
  for (std::uint32_t bits = 0; bits < (1u << kCount); bits += kCount > 8 ? 37 : 1) {
    Vector mask{};
    for (std::size_t k = 0; k < kCount; ++k) mask[k] = (bits >> k & 1) != 0 ? -1 : 0;
    EXPECT_EQ(lane_bits(mask), bits);
    EXPECT_EQ(portable::lane_bits(mask), bits);
  }
}

TEST(Portable, BitsOfAComparison) {
  expect_every_bit<IntVector>();
  expect_every_bit<LongVector>();
}

template <class Float>
void expect_transposed() {
  constexpr std::size_t kFrom = kTile + 3, kTo = kTile + 5;
  std::vector<Float> from(kTile * kFrom), to(kTile * kTo, Float(-1)), expected = to;
  for (std::size_t k = 0; k < from.size(); ++k) from[k] = static_cast<Float>(k);
  transpose_tile(from.data(), kFrom, to.data(), kTo);
  portable::transpose_tile(from.data(), kFrom, expected.data(), kTo);
  EXPECT_EQ(to, expected);
  EXPECT_EQ(to[3 * kTo + 5], from[5 * kFrom + 3]);
}

TEST(Portable, TilesAreTransposed) {
  expect_transposed<float>();
  expect_transposed<double>();
}

TEST(Portable, SquaresAreTransposed) {
  constexpr std::size_t kFrom = kSquare + 3, kTo = kSquare + 1;
  std::vector<double> from(kSquare * kFrom), to(kSquare * kTo, -1.0), expected = to;
  for (std::size_t k = 0; k < from.size(); ++k) from[k] = static_cast<double>(k);
  transpose_square(from.data(), kFrom, to.data(), kTo);
  portable::transpose<kSquare>(from.data(), kFrom, expected.data(), kTo);
  EXPECT_EQ(to, expected);
  EXPECT_EQ(to[2 * kTo + 1], from[1 * kFrom + 2]);
}

TEST(Portable, ABlockOfBitsIsEmptyOrNot) {
  EXPECT_FALSE(bits::any(bits::Block{}));
  for (std::size_t bit = 0; bit < 256; ++bit) {
    bits::Block block{};
    block[bit / 64] = bits::Word{1} << (bit % 64);
    EXPECT_TRUE(bits::any(block)) << bit;
  }
}

TEST(Portable, LevelsAboveALevel) {
  std::mt19937 generator(2);
  std::vector<Level> levels(64);
  for (int above = 0; above < 256; ++above) {
    for (Level& level : levels) level = static_cast<Level>(generator());
    levels[static_cast<std::size_t>(above) % 64] = static_cast<Level>(above);
    const std::uint64_t result = bits_above(levels.data(), static_cast<Level>(above));
    for (std::size_t k = 0; k < 64; ++k) EXPECT_EQ(result >> k & 1, levels[k] > above ? 1u : 0u);
  }
}

// One rounding where the instruction set has it, in every lane; otherwise the product is rounded
// first.
TEST(Portable, ProductsAndSumsRoundAlikeInEveryLane) {
  std::mt19937 generator(3);
  std::normal_distribution<double> normal;
  for (int time = 0; time < 1000; ++time) {
    Lanes a, b, c;
    for (Index k = 0; k < kPackWidth; ++k) {
      a[k] = normal(generator), b[k] = normal(generator), c[k] = normal(generator);
    }
    const Lanes result = multiply_add(a, b, c);
    for (Index k = 0; k < kPackWidth; ++k) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
      EXPECT_EQ(result[k], std::fma(a[k], b[k], c[k]));
#else
      volatile double product = a[k] * b[k];
      EXPECT_EQ(result[k], product + c[k]);
#endif
    }
  }
}

}  // namespace
}  // namespace attnscope
