// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace attnscope {

// Elements of H1 over Z/2, written as sums of the classes that are open. When a class closes it
// becomes a sum of older ones; labels that hold it are rewritten when they are next looked at, as
// in union-find. Labels of attention graphs hold one to four classes, so they are short lists,
// youngest first.
class CycleLabels {
 public:
  using Id = std::uint32_t;
  using Class = std::uint32_t;
  static constexpr Id kZero = 0;
  static constexpr Class kNone = 0xffffffffu;

  void reset();
  // Opens the next class, numbered 0, 1, 2, ... by age, and returns the label that holds it alone.
  Id open();
  // The sum of two labels.
  Id sum(Id a, Id b);
  // Sets a + b + c + d to zero: the youngest class in it closes and is returned, kNone if the sum
  // is zero already.
  Class close(Id a, Id b, Id c, Id d);
  // Whether a label has become zero.
  bool is_zero(Id id) {
    refresh(id);
    return labels_[id].size == 0;
  }
  std::size_t closed() const { return closed_; }
  std::size_t alive() const { return alive_; }

 private:
  struct Label {
    std::uint32_t offset;
    std::uint32_t size;
    std::uint32_t closed;  // how many classes had closed when it was last rewritten
  };
  // Whether a label holds a closed class.
  bool is_stale(const Label& label) const {
    std::uint8_t stale = 0;
    for (std::uint32_t k = 0; k < label.size; ++k) stale |= is_closed_[arena_[label.offset + k]];
    return stale != 0;
  }
  // Rewrites a label in open classes where it holds closed ones.
  void refresh(Id id) {
    Label& label = labels_[id];
    if (label.closed == closed_) return;
    if (is_stale(label)) return rewrite(id);
    label.closed = closed_;
  }
  void rewrite(Id id);
  void add(std::initializer_list<Id> ids);
  // Adds a class to `list_`, or takes it out where it is there.
  void toggle_in_list(Class entry);
  void toggle(Class entry);
  void toggle_all(Id id);
  // Empties the scratch set into `list_`, youngest first, closed classes replaced by what they
  // became.
  void drain();
  // Makes `list_` the classes of a label.
  void store_list(Label& label);

  std::vector<Label> labels_;
  std::vector<Class> arena_;
  std::vector<Id> label_of_class_;
  std::vector<std::uint8_t> is_closed_;
  std::uint32_t closed_ = 0;
  std::size_t alive_ = 0;
  // A set of classes with its non-zero words marked, so that draining skips what is empty.
  std::vector<std::uint64_t> set_;
  std::vector<std::uint64_t> marks_;
  std::size_t top_ = 0;  // one past the highest mark word that may be non-zero
  // Classes, youngest first: the first `listed_` entries, with room for all.
  std::vector<Class> list_;
  std::size_t listed_ = 0;
  std::vector<Id> stack_;
};

}  // namespace attnscope
