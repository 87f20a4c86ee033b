// SPDX-License-Identifier: MIT
#include "homology/cycle_labels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace attnscope {
namespace {

using Classes = std::set<CycleLabels::Class>;

void toggle(Classes& sum, CycleLabels::Class entry) {
  if (!sum.insert(entry).second) sum.erase(entry);
}

// What labels mean, by sets alone: every closed class is a sum of older open ones.
class Sums {
 public:
  Classes open() {
    const auto entry = static_cast<CycleLabels::Class>(count_++);
    return {entry};
  }
  Classes in_open_classes(const Classes& sum) const {
    Classes result;
    for (const CycleLabels::Class entry : sum) {
      const auto closed = became_.find(entry);
      if (closed == became_.end()) {
        toggle(result, entry);
      } else {
        for (const CycleLabels::Class other : in_open_classes(closed->second))
          toggle(result, other);
      }
    }
    return result;
  }
  CycleLabels::Class close(const Classes& zero) {
    Classes rest = in_open_classes(zero);
    if (rest.empty()) return CycleLabels::kNone;
    const CycleLabels::Class youngest = *rest.rbegin();
    rest.erase(youngest);
    became_[youngest] = rest;
    return youngest;
  }
  std::size_t alive() const { return count_ - became_.size(); }

 private:
  std::size_t count_ = 0;
  std::map<CycleLabels::Class, Classes> became_;
};

Classes sum_of(const Classes& a, const Classes& b) {
  Classes sum = a;
  for (const CycleLabels::Class entry : b) toggle(sum, entry);
  return sum;
}

// `closing`: how often of a thousand steps a sum becomes zero; the fewer, the longer sums are.
void expect_sums(unsigned seed, int closing) {
  std::mt19937 generator(seed);
  CycleLabels labels;
  labels.reset();
  Sums sums;
  std::vector<CycleLabels::Id> ids = {CycleLabels::kZero};
  std::vector<Classes> meanings = {{}};
  std::size_t longest = 0;
  for (int step = 0; step < 1500; ++step) {
    const auto drawn = [&] { return generator() % ids.size(); };
    const int kind = static_cast<int>(generator() % 1000);
    if (kind < closing) {
      const std::size_t at[] = {drawn(), drawn(), drawn(), drawn()};
      const Classes zero = sum_of(sum_of(meanings[at[0]], meanings[at[1]]),
                                  sum_of(meanings[at[2]], meanings[at[3]]));
      ASSERT_EQ(labels.close(ids[at[0]], ids[at[1]], ids[at[2]], ids[at[3]]), sums.close(zero));
    } else if (kind < (1000 + closing) / 2) {
      ids.push_back(labels.open());
      meanings.push_back(sums.open());
    } else {
      const std::size_t a = step % 4 == 0 ? drawn() : ids.size() - 1, b = drawn();
      ids.push_back(labels.sum(ids[a], ids[b]));
      meanings.push_back(sums.in_open_classes(sum_of(meanings[a], meanings[b])));
      longest = std::max(longest, meanings.back().size());
    }
    const std::size_t looked_at = drawn();
    ASSERT_EQ(labels.is_zero(ids[looked_at]), sums.in_open_classes(meanings[looked_at]).empty());
    ASSERT_EQ(labels.alive(), sums.alive());
  }
  // Sums of few classes and of many are put together in different ways.
  if (closing < 100) {
    EXPECT_GT(longest, 24u);
  }
}

TEST(CycleLabels, AreSumsOverTheClassesThatAreOpen) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    expect_sums(seed, 20);
    expect_sums(seed, 400);
  }
}

TEST(CycleLabels, ASumOfEqualLabelsClosesNothing) {
  CycleLabels labels;
  labels.reset();
  const CycleLabels::Id a = labels.open(), b = labels.open();
  EXPECT_EQ(labels.close(a, a, b, b), CycleLabels::kNone);
  EXPECT_EQ(labels.close(a, b, a, b), CycleLabels::kNone);
  EXPECT_EQ(labels.close(a, b, b, a), CycleLabels::kNone);
  EXPECT_EQ(labels.alive(), 2u);
  EXPECT_EQ(labels.close(a, b, CycleLabels::kZero, CycleLabels::kZero), 1u);
  EXPECT_EQ(labels.close(a, b, CycleLabels::kZero, CycleLabels::kZero), CycleLabels::kNone);
  EXPECT_EQ(labels.close(b, CycleLabels::kZero, CycleLabels::kZero, CycleLabels::kZero), 0u);
}

}  // namespace
}  // namespace attnscope
