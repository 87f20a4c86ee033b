// SPDX-License-Identifier: MIT
#include "homology/cycle_labels.h"

#include <algorithm>
#include <bit>

namespace attnscope {

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

void CycleLabels::drain() {
  list_.clear();
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
        list_.push_back(entry);
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
    bool stale = false;
    bool waits = false;
    for (std::uint32_t k = 0; k < label.size; ++k) {
      const Class entry = arena_[label.offset + k];
      if (is_closed_[entry] == 0) continue;
      stale = true;
      const Id became = label_of_class_[entry];
      if (labels_[became].closed == closed_) continue;
      stack_.push_back(became);
      waits = true;
    }
    if (waits) continue;
    stack_.pop_back();
    labels_[top].closed = closed_;
    if (!stale) continue;
    toggle_all(top);
    drain();
    Label& rewritten = labels_[top];
    if (list_.size() > rewritten.size) {
      rewritten.offset = static_cast<std::uint32_t>(arena_.size());
      arena_.insert(arena_.end(), list_.begin(), list_.end());
    } else {
      std::copy(list_.begin(), list_.end(), arena_.begin() + rewritten.offset);
    }
    rewritten.size = static_cast<std::uint32_t>(list_.size());
  }
}

CycleLabels::Id CycleLabels::sum(Id a, Id b) {
  if (a == b) return kZero;
  refresh(a);
  refresh(b);
  if (labels_[a].size == 0) return labels_[b].size == 0 ? kZero : b;
  if (labels_[b].size == 0) return a;
  add({a, b});
  if (list_.empty()) return kZero;
  if (list_.size() == 1) return label_of_class_[list_[0]];
  const auto id = static_cast<Id>(labels_.size());
  labels_.push_back({static_cast<std::uint32_t>(arena_.size()),
                     static_cast<std::uint32_t>(list_.size()), closed_});
  arena_.insert(arena_.end(), list_.begin(), list_.end());
  return id;
}

// The sum of labels that are up to date, to `list_`.
void CycleLabels::add(std::initializer_list<Id> ids) {
  constexpr std::size_t kFew = 24;
  std::size_t total = 0;
  for (const Id id : ids) total += labels_[id].size;
  if (total > kFew) {
    for (const Id id : ids) toggle_all(id);
    drain();
    return;
  }
  Class sorted[kFew];
  std::size_t size = 0;
  for (const Id id : ids) {
    const Label& label = labels_[id];
    for (std::uint32_t k = 0; k < label.size; ++k) {
      const Class entry = arena_[label.offset + k];
      std::size_t at = size;
      while (at > 0 && sorted[at - 1] < entry) --at;
      if (at > 0 && sorted[at - 1] == entry) {
        std::copy(sorted + at, sorted + size, sorted + at - 1);
        --size;
      } else {
        std::copy_backward(sorted + at, sorted + size, sorted + size + 1);
        sorted[at] = entry;
        ++size;
      }
    }
  }
  list_.assign(sorted, sorted + size);
}

CycleLabels::Class CycleLabels::close(Id a, Id b, Id c, Id d) {
  for (const Id id : {a, b, c, d}) refresh(id);
  add({a, b, c, d});
  if (list_.empty()) return kNone;
  const Class youngest = list_[0];
  is_closed_[youngest] = 1;
  ++closed_;
  --alive_;
  Label& label = labels_[label_of_class_[youngest]];
  label.closed = closed_;
  label.size = static_cast<std::uint32_t>(list_.size() - 1);
  if (label.size > 1) {
    label.offset = static_cast<std::uint32_t>(arena_.size());
    arena_.insert(arena_.end(), list_.begin() + 1, list_.end());
  } else if (label.size == 1) {
    arena_[label.offset] = list_[1];
  }
  return youngest;
}

}  // namespace attnscope
