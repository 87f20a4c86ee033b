// SPDX-License-Identifier: MIT
// Rows of a matrix of any layout, read one by one against its entries.
#include "matrix/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

namespace attnscope {
namespace {

// More than two panels of rows.
constexpr Index kRows = 37, kKeys = 21;

struct Layout {
  const char* name;
  Index row_stride, column_stride;
};
constexpr Layout kLayouts[] = {
    {"rows are contiguous", kKeys, 1},
    {"columns are contiguous", 1, kRows},
    {"rows lie between those of other matrices", 3 * kKeys, 3},
    {"rows share their memory", 1, 1},
    {"all rows are the same", 0, 1},
    {"all rows are the same, with gaps", 0, 2},
};

// Every support of a matrix of this size; the masks live as long as the object.
class Supports {
 public:
  Supports() : visible_(std::make_unique<bool[]>(kRows * 2 * kKeys)) {
    for (Index k = 0; k < kRows * 2 * kKeys; ++k) visible_[k] = k * 7 % 5 < 3;
    all.emplace_back();
    for (const Index shift : {-40, -3, 0, 5, 40}) {
      all.emplace_back().kind = Support::Kind::causal;
      all.back().shift = shift;
    }
    Support& masked = all.emplace_back();
    masked.kind = Support::Kind::mask;
    masked.mask = visible_.get();
    masked.mask_row_stride = 2 * kKeys;
    masked.mask_column_stride = 2;
  }
  std::vector<Support> all;

 private:
  std::unique_ptr<bool[]> visible_;
};

template <class Scalar>
class Rows : public ::testing::Test {};
using Scalars = ::testing::Types<double, float, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Rows, Scalars);

TYPED_TEST(Rows, HoldTheEntriesThatTheirQuerySees) {
  // Whole numbers that every type holds, none of them 0.
  std::vector<TypeParam> memory(3 * kRows * kKeys);
  for (std::size_t k = 0; k < memory.size(); ++k)
    memory[k] = static_cast<TypeParam>(static_cast<float>(1 + k * 11 % 127));
  std::vector<Index> order;
  for (Index i = 0; i < kRows; ++i) order.push_back(i);
  order.insert(order.end(), {20, 3, 36, 5, 4});
  const Supports supports;
  for (const Layout& layout : kLayouts) {
    const auto matrix =
        matrix_view(memory.data(), kRows, kKeys, layout.row_stride, layout.column_stride);
    for (const Support& support : supports.all) {
      SCOPED_TRACE(::testing::Message() << layout.name << ", support " << int(support.kind)
                                        << ", shift " << support.shift);
      RowScratch scratch;
      RowReader<TypeParam> reader(matrix, support, scratch);
      EXPECT_EQ(reader.in_place(), (std::is_same_v<TypeParam, Wide<TypeParam>>) &&
                                       layout.column_stride == 1 &&
                                       support.kind != Support::Kind::mask);
      const Index together = layout.column_stride > layout.row_stride && layout.column_stride > 1
                                 ? RowReader<TypeParam>::kPanelRows
                                 : 1;
      for (std::size_t at = 0; at < order.size(); ++at) {
        const Index i = order[at];
        const Wide<TypeParam>* row = reader.row(i);
        Index end = 0;
        for (Index j = 0; j < kKeys; ++j) {
          const bool visible = support.visible(i, j);
          if (visible) end = j + 1;
          const auto entry = static_cast<Wide<TypeParam>>(matrix(i, j));
          if (visible || support.kind == Support::Kind::mask) {
            EXPECT_EQ(row[j], visible ? entry : Wide<TypeParam>(0)) << i << " " << j;
          }
        }
        EXPECT_EQ(reader.end(i), support.kind == Support::Kind::mask ? kKeys : end) << i;
        EXPECT_EQ(visible_keys(support, i, kKeys),
                  support.kind == Support::Kind::mask
                      ? std::count_if(row, row + kKeys, [](auto x) { return x != 0; })
                      : end);
        // In the first pass the rows are read from the first on.
        if (reader.in_place() || static_cast<Index>(at) >= kRows) continue;
        const Index last = std::min(i / together * together + together, kRows) - 1;
        for (Index j = reader.end(last); j < kKeys; ++j) EXPECT_EQ(row[j], 0) << i << " " << j;
      }
      Index next = 0;
      for_each_row(matrix, support, scratch, [&](Index i, const auto* row, Index end) {
        EXPECT_EQ(i, next++);
        EXPECT_EQ(end, support.end(i, kKeys));
        if (end > 0 && support.visible(i, end - 1)) {
          EXPECT_EQ(row[end - 1], static_cast<Wide<TypeParam>>(matrix(i, end - 1)));
        }
      });
      EXPECT_EQ(next, kRows);
    }
  }
}

TEST(RowSupports, QueriesThatSeeAKeyAreCounted) {
  const Supports supports;
  for (const Support& support : supports.all) {
    std::vector<Index> counts;
    visible_queries(support, kRows, kKeys, counts);
    for (Index j = 0; j < kKeys; ++j) {
      Index expected = 0;
      for (Index i = 0; i < kRows; ++i) expected += support.visible(i, j) ? 1 : 0;
      EXPECT_EQ(counts[static_cast<std::size_t>(j)], expected)
          << int(support.kind) << " " << support.shift << " " << j;
    }
  }
}

TEST(RoundedUp, IsTheSmallestNumberThatIsNotBelow) {
  for (const double threshold : {0.0, 0.5, 0.1, 1.0 / 3.0, 1.0 + 0x1p-30, 1.0 - 0x1p-30, -0.1}) {
    EXPECT_EQ(rounded_up<double>(threshold), threshold);
    const float rounded = rounded_up<float>(threshold);
    EXPECT_GE(double(rounded), threshold);
    EXPECT_LT(double(std::nextafter(rounded, -1.0F)), threshold);
  }
}

}  // namespace
}  // namespace attnscope
