// SPDX-License-Identifier: MIT
#include "homology/cycle_labels.h"

#include <algorithm>
#include <bit>

namespace attnscope {
namespace {

// Sums of so many classes are kept sorted while they are formed, longer ones are gathered in a set.
constexpr std::size_t kFew = 24;

}  // namespace

void CycleLabels::reset() {
  labels_.assign(1, {0, 0, 0});
  arena_.clear();
  label_of_class_.clear();
  is_closed_.clear();
  closed_ = 0;
  alive_ = 0;
  set_.clear();
  marks_.clear();
  top_ = 0;
}

CycleLabels::Id CycleLabels::open() {
  const auto entry = static_cast<Class>(label_of_class_.size());
  const auto id = static_cast<Id>(labels_.size());
  labels_.push_back({static_cast<std::uint32_t>(arena_.size()), 1, closed_});
  arena_.push_back(entry);
  label_of_class_.push_back(id);
  is_closed_.push_back(0);
  if (list_.size() < entry + kFew + 1) list_.resize(2 * entry + 2 * kFew);
  if (set_.size() * 64 <= entry) set_.push_back(0);
  if (marks_.size() * 64 < set_.size()) marks_.push_back(0);
  ++alive_;
  return id;
}

void CycleLabels::toggle(Class entry) {
  const std::size_t word = entry >> 6;
  const std::size_t mark = word >> 6;
  set_[word] ^= std::uint64_t{1} << (entry & 63);
  marks_[mark] |= std::uint64_t{1} << (word & 63);
  top_ = std::max(top_, mark + 1);
}

void CycleLabels::toggle_all(Id id) {
  const Label& label = labels_[id];
  for (std::uint32_t k = 0; k < label.size; ++k) toggle(arena_[label.offset + k]);
}

void CycleLabels::toggle_in_list(Class entry) {
  std::size_t at = 0;
  while (at < listed_ && list_[at] > entry) ++at;
  if (at < listed_ && list_[at] == entry) {
    --listed_;
    for (; at < listed_; ++at) list_[at] = list_[at + 1];
    return;
  }
  for (std::size_t k = listed_++; k > at; --k) list_[k] = list_[k - 1];
  list_[at] = entry;
}

void CycleLabels::store_list(Label& label) {
  if (listed_ > label.size) {
    label.offset = static_cast<std::uint32_t>(arena_.size());
    arena_.resize(arena_.size() + listed_);
  }
  label.size = static_cast<std::uint32_t>(listed_);
  for (std::size_t k = 0; k < listed_; ++k) arena_[label.offset + k] = list_[k];
}

void CycleLabels::drain() {
  listed_ = 0;
  while (top_ > 0) {
    std::uint64_t& mark = marks_[top_ - 1];
    if (mark == 0) {
      --top_;
      continue;
    }
    const int high = 63 - std::countl_zero(mark);
    const std::size_t word = (top_ - 1) * 64 + high;
    while (set_[word] != 0) {
      const int bit = 63 - std::countl_zero(set_[word]);
      const auto entry = static_cast<Class>(word * 64 + bit);
      set_[word] ^= std::uint64_t{1} << bit;
      if (is_closed_[entry] != 0) {
        toggle_all(label_of_class_[entry]);  // only older classes, so the sweep stays ahead of it
      } else {
        list_[listed_++] = entry;
      }
    }
    mark &= ~(std::uint64_t{1} << high);
  }
}

// The closed classes' labels first.
void CycleLabels::rewrite(Id id) {
  stack_.assign(1, id);
  while (!stack_.empty()) {
    const Id top = stack_.back();
    const Label label = labels_[top];
    std::size_t total = 0;
    bool stale = false;
    bool waits = false;
    for (std::uint32_t k = 0; k < label.size; ++k) {
      const Class entry = arena_[label.offset + k];
      ++total;
      if (is_closed_[entry] == 0) continue;
      stale = true;
      const Id became = label_of_class_[entry];
      total += labels_[became].size;
      if (labels_[became].closed == closed_) continue;
      stack_.push_back(became);
      waits = true;
    }
    if (waits) continue;
    stack_.pop_back();
    labels_[top].closed = closed_;
    if (!stale) continue;
    if (total > kFew) {
      toggle_all(top);
      drain();
    } else {
      listed_ = 0;
      for (std::uint32_t k = 0; k < label.size; ++k) {
        const Class entry = arena_[label.offset + k];
        if (is_closed_[entry] == 0) {
          toggle_in_list(entry);
          continue;
        }
        const Label& became = labels_[label_of_class_[entry]];
        for (std::uint32_t m = 0; m < became.size; ++m) toggle_in_list(arena_[became.offset + m]);
      }
    }
    store_list(labels_[top]);
  }
}

CycleLabels::Id CycleLabels::sum(Id a, Id b) {
  if (a == b) return kZero;
  refresh(a);
  refresh(b);
  if (labels_[a].size == 0) return labels_[b].size == 0 ? kZero : b;
  if (labels_[b].size == 0) return a;
  add({a, b});
  if (listed_ == 0) return kZero;
  if (listed_ == 1) return label_of_class_[list_[0]];
  const auto id = static_cast<Id>(labels_.size());
  labels_.push_back({0, 0, closed_});
  store_list(labels_.back());
  return id;
}

// The sum of labels that are up to date, to `list_`.
void CycleLabels::add(std::initializer_list<Id> ids) {
  std::size_t total = 0;
  for (const Id id : ids) total += labels_[id].size;
  if (total > kFew) {
    for (const Id id : ids) toggle_all(id);
    drain();
    return;
  }
  listed_ = 0;
  for (const Id id : ids) {
    const Label& label = labels_[id];
    for (std::uint32_t k = 0; k < label.size; ++k) toggle_in_list(arena_[label.offset + k]);
  }
}

CycleLabels::Class CycleLabels::close(Id a, Id b, Id c, Id d) {
  if ((a == b && c == d) || (a == c && b == d) || (a == d && b == c)) return kNone;
  for (const Id id : {a, b, c, d}) refresh(id);
  add({a, b, c, d});
  if (listed_ == 0) return kNone;
  const Class youngest = list_[0];
  is_closed_[youngest] = 1;
  ++closed_;
  --alive_;
  --listed_;
  for (std::size_t k = 0; k < listed_; ++k) list_[k] = list_[k + 1];
  Label& label = labels_[label_of_class_[youngest]];
  label.closed = closed_;
  store_list(label);
  return youngest;
}

}  // namespace attnscope
