// SPDX-License-Identifier: MIT
#include "homology/bit_row.h"

#include <gtest/gtest.h>

#include <random>

namespace attnscope {
namespace {

using bits::Word;

// Rows of 24 words at most, on the boundaries that rows have.
struct alignas(64) Row {
  Word words[24] = {};
  bool has(std::size_t bit) const { return bits::contains(words, bit); }
};

Row random_row(std::mt19937& generator, std::size_t words, unsigned one_in) {
  Row row;
  for (std::size_t bit = 0; bit < words * 64; ++bit) {
    if (generator() % one_in == 0) bits::insert(row.words, bit);
  }
  return row;
}

// The smallest bit of which `holds` is true.
template <class Holds>
std::uint32_t smallest(std::size_t words, Holds holds) {
  for (std::size_t bit = 0; bit < words * 64; ++bit) {
    if (holds(bit)) return static_cast<std::uint32_t>(bit);
  }
  return bits::kNone;
}

template <int kWords>
void expect_sets(std::size_t words) {
  std::mt19937 generator(static_cast<unsigned>(words));
  for (unsigned one_in : {2u, 20u, 200u, 5000u}) {
    for (int round = 0; round < 30; ++round) {
      const auto drawn = [&] { return random_row(generator, words, one_in); };
      const Row a = drawn(), b = drawn(), c = drawn(), d = drawn();
      const auto in_common = [&](std::size_t bit) { return a.has(bit) && b.has(bit); };
      const auto in_either = [&](std::size_t bit) { return c.has(bit) || d.has(bit); };
      const auto common_in = [&](auto holds) {
        return smallest(words, [&](std::size_t bit) { return in_common(bit) && holds(bit); });
      };
      EXPECT_EQ(bits::first<kWords>(a.words, words),
                smallest(words, [&](std::size_t bit) { return a.has(bit); }));
      const std::uint32_t common = common_in([](std::size_t) { return true; });
      EXPECT_EQ(bits::first_common<kWords>(a.words, b.words, words), common);
      EXPECT_EQ(bits::meet<kWords>(a.words, b.words, words), common != bits::kNone);
      EXPECT_EQ(bits::meet_either<kWords>(a.words, b.words, c.words, d.words, words),
                common_in(in_either) != bits::kNone);
      EXPECT_EQ(bits::first_in_difference<kWords>(a.words, b.words, c.words, d.words, words),
                common_in([&](std::size_t bit) { return c.has(bit) != d.has(bit); }));

      Row in, out;
      EXPECT_EQ(bits::split<kWords>(a.words, b.words, c.words, in.words, out.words, words),
                common_in([&](std::size_t bit) { return !c.has(bit); }) != bits::kNone);
      Row inside, outside;
      EXPECT_EQ(bits::split_outside<kWords>(a.words, b.words, c.words, d.words, outside.words,
                                            inside.words, words),
                common_in([&](std::size_t bit) { return !in_either(bit); }) != bits::kNone);
      Row from = a, taken, grown = c, fresh = d, joined = c;
      bits::take<kWords>(b.words, from.words, taken.words, words);
      Row rest = a;
      bits::spread<kWords>(b.words, rest.words, grown.words, fresh.words, words);
      bits::unite<kWords>(d.words, joined.words, words);
      for (std::size_t bit = 0; bit < words * 64; ++bit) {
        ASSERT_EQ(in.has(bit), in_common(bit) && c.has(bit)) << bit;
        ASSERT_EQ(out.has(bit), in_common(bit) && !c.has(bit)) << bit;
        ASSERT_EQ(inside.has(bit), in_common(bit) && in_either(bit)) << bit;
        ASSERT_EQ(outside.has(bit), in_common(bit) && !in_either(bit)) << bit;
        ASSERT_EQ(taken.has(bit), in_common(bit)) << bit;
        ASSERT_EQ(from.has(bit), a.has(bit) && !b.has(bit)) << bit;
        ASSERT_EQ(rest.has(bit), a.has(bit) && !b.has(bit)) << bit;
        ASSERT_EQ(grown.has(bit), c.has(bit) || in_common(bit)) << bit;
        ASSERT_EQ(fresh.has(bit), d.has(bit) || in_common(bit)) << bit;
        ASSERT_EQ(joined.has(bit), in_either(bit)) << bit;
      }
    }
  }
}

TEST(BitRow, SetsOfEveryLength) {
  expect_sets<1>(1);
  expect_sets<2>(2);
  expect_sets<4>(4);
  expect_sets<8>(8);
  expect_sets<16>(16);
  expect_sets<0>(12);
  expect_sets<0>(24);
}

TEST(BitRow, BitsComeAndGo) {
  Row row;
  bits::insert(row.words, 700);
  bits::erase_if(false, row.words, 700);
  EXPECT_TRUE(row.has(700));
  bits::erase_if(true, row.words, 700);
  EXPECT_FALSE(row.has(700));
}

}  // namespace
}  // namespace attnscope
