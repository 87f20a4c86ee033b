// SPDX-License-Identifier: MIT
#include "matrix/matrix_view.h"

#include <algorithm>
#include <cstring>

#include "simd/number_lanes.h"

namespace attnscope {
namespace {

// What a loop looks at in one go, a vector; the last block of a run may overlap the one before.
// Of blocks wider than the processor's vectors a compiler keeps none in a register.
constexpr Index kBlockBytes = kVectorBytes;
// Lines that are fetched ahead of the one that is looked at.
constexpr Index kAhead = 4;

// A whole number of the size of an entry. Magnitudes have no sign bit, so signed numbers order
// them, and processors compare those.
template <class Scalar>
using Bits =
    std::conditional_t<sizeof(Scalar) == 2, std::int16_t,
                       std::conditional_t<sizeof(Scalar) == 4, std::int32_t, std::int64_t>>;

// The entry's bits without its sign, which order as magnitudes do.
template <class Scalar>
Bits<Scalar> magnitude_bits(const Scalar* entry) {
  Bits<Scalar> bits;
  std::memcpy(&bits, entry, sizeof(bits));
  return bits & std::numeric_limits<Bits<Scalar>>::max();
}

// fold(fold(0, a), b) … over the magnitudes of a run, in any order: without a branch per entry, so
// that it vectorises.
template <class Scalar, class Fold>
Bits<Scalar> fold_magnitudes(const Scalar* run, Index n, Index stride, Fold fold) {
  Bits<Scalar> found = 0;
  const auto add = [&](Bits<Scalar> one) { found = static_cast<Bits<Scalar>>(fold(found, one)); };
  constexpr Index kBlock = kBlockBytes / sizeof(Scalar);
  if (stride == 1 && n >= kBlock) {
    typedef Bits<Scalar> Block __attribute__((vector_size(kBlockBytes)));
    Block seen{};
    const auto look = [&](Index j) {
      Block block;
      std::memcpy(&block, run + j, sizeof(block));
      seen = fold(seen, block & std::numeric_limits<Bits<Scalar>>::max());
    };
    for (Index j = 0; j + kBlock <= n; j += kBlock) look(j);
    look(n - kBlock);
    for (Index k = 0; k < kBlock; ++k) add(seen[k]);
  } else {
    for (Index j = 0; j < n; ++j) add(magnitude_bits(run + j * stride));
  }
  return found;
}

template <class Scalar>
bool run_is_finite(const Scalar* run, Index n, Index stride) {
  if constexpr (sizeof(Scalar) == 8) {
    // No AVX2 instruction takes the larger of two 64-bit integers. A sum of x * 0 is 0 exactly when
    // every x is finite, and NaN otherwise.
    double strands[16] = {};
    Index j = 0;
    if (stride == 1) {
      for (; j + 16 <= n; j += 16) {
        for (Index k = 0; k < 16; ++k) strands[k] += run[j + k] * 0.0;
      }
    }
    for (; j < n; ++j) strands[0] += run[j * stride] * 0.0;
    double sum = 0.0;
    for (const double strand : strands) sum += strand;
    return sum == 0.0;
  } else {
    const Scalar infinity = std::numeric_limits<Scalar>::infinity();
    const auto larger = [](auto a, auto b) { return b > a ? b : a; };
    return fold_magnitudes(run, n, stride, larger) < magnitude_bits(&infinity);
  }
}

// The part of a line that no query of a causal map sees: the end of a row, the head of a column.
struct HiddenRun {
  Index begin;
  Index count;
};

HiddenRun hidden_run(Index line, bool by_rows, Index shift, Index length) {
  if (!by_rows) return {0, std::clamp<Index>(line - shift, 0, length)};
  const Index begin = std::clamp<Index>(line + shift + 1, 0, length);
  return {begin, length - begin};
}

// Largest magnitudes of the entries that queries see and of those that they do not, over any number
// of contiguous lines: one load and one comparison for each vector, and no work at a line's end.
template <class Scalar>
class LineMagnitudes {
 public:
  static constexpr Index kBlock = kBlockBytes / static_cast<Index>(sizeof(Scalar));

  // A line of `length` >= kBlock entries.
  void add(const Scalar* line, Index length, HiddenRun hidden) {
    const Index end = hidden.begin + hidden.count;
    if (hidden.begin > 0) fold(line, 0, hidden.begin, length, seen_);
    if (hidden.count > 0) fold(line, hidden.begin, end, length, hidden_);
    if (end < length) fold(line, end, length, length, seen_);
  }

  Bits<Scalar> seen() const { return largest_of(seen_); }
  Bits<Scalar> hidden() const { return largest_of(hidden_); }

 private:
  typedef Bits<Scalar> Block __attribute__((vector_size(kBlockBytes)));

  static Block magnitudes_at(const Scalar* from) {
    Block block;
    std::memcpy(&block, from, sizeof(block));
    return block & std::numeric_limits<Bits<Scalar>>::max();
  }

  static void fold(const Scalar* line, Index begin, Index end, Index length, Block& largest) {
    Index j = begin;
    for (; j + kBlock <= end; j += kBlock) {
      const Block block = magnitudes_at(line + j);
      largest = block > largest ? block : largest;
    }
    if (j == end) return;
    // The rest of the run lies in a whole vector of the line, whose other lanes do not count.
    const Index from = std::min(j, length - kBlock);
    Block lane;
    for (Index k = 0; k < kBlock; ++k) lane[k] = static_cast<Bits<Scalar>>(k);
    const Block first = static_cast<Bits<Scalar>>(j - from) - Block{};
    const Block last = static_cast<Bits<Scalar>>(end - from) - Block{};
    const Block counted = (lane >= first) & (lane < last);
    const Block block = magnitudes_at(line + from) & counted;
    largest = block > largest ? block : largest;
  }

  static Bits<Scalar> largest_of(Block block) {
    Bits<Scalar> largest = 0;
    for (Index k = 0; k < kBlock; ++k) largest = std::max<Bits<Scalar>>(largest, block[k]);
    return largest;
  }

  Block seen_{};
  Block hidden_{};
};

// read_lines of contiguous lines, none shorter than a vector.
template <class Scalar>
void read_contiguous_lines(const MatrixView<Scalar>& lines, bool by_rows, Index begin, Index end,
                           MatrixReading& reading, Index shift) {
  const Index length = lines.cols();
  const Index outer = lines.outerStride();
  LineMagnitudes<Scalar> magnitudes;
  for (Index k = begin; k < end; ++k) {
    const Scalar* line = lines.data() + k * outer;
    // Processors look ahead within a page of memory, and a page holds few lines.
    if (k + kAhead < lines.rows()) {
      const Scalar* later = line + kAhead * outer;
      constexpr Index kCacheLine = 64 / static_cast<Index>(sizeof(Scalar));
      for (Index j = 0; j < length; j += kCacheLine) __builtin_prefetch(later + j);
    }
    magnitudes.add(line, length,
                   reading.causal ? hidden_run(k, by_rows, shift, length) : HiddenRun{length, 0});
  }
  const Scalar infinity = std::numeric_limits<Scalar>::infinity();
  const Bits<Scalar> hidden = magnitudes.hidden();
  if (std::max(magnitudes.seen(), hidden) >= magnitude_bits(&infinity)) {
    reading = {false, false};
  } else {
    reading.causal = reading.causal && hidden == 0;
  }
}

// Whether an entry of the hidden runs of contiguous lines is not 0: whole vectors, and of the one
// in which a run begins or ends the lanes that are its own. What was seen is looked at after every
// few lines, so that a map that is not causal costs little.
template <class Scalar>
bool any_hidden_nonzero(const MatrixView<Scalar>& lines, bool by_rows, Index shift) {
  constexpr Index kBlock = kBlockBytes / static_cast<Index>(sizeof(Scalar));
  constexpr Index kLines = 8;
  typedef Bits<Scalar> Block __attribute__((vector_size(kBlockBytes)));
  const Index length = lines.cols();
  const auto block_at = [](const Scalar* from) {
    Block block;
    std::memcpy(&block, from, sizeof(block));
    return block & std::numeric_limits<Bits<Scalar>>::max();
  };
  Block lane;
  for (Index k = 0; k < kBlock; ++k) lane[k] = static_cast<Bits<Scalar>>(k);
  for (Index first = 0; first < lines.rows(); first += kLines) {
    Block seen{};
    Bits<Scalar> few = 0;  // of lines at the start of the memory, before which nothing may be read
    for (Index k = first; k < std::min<Index>(first + kLines, lines.rows()); ++k) {
      const Scalar* line = lines.data() + k * lines.outerStride();
      const HiddenRun hidden = hidden_run(k, by_rows, shift, length);
      if (hidden.count == 0) continue;
      const Index end = hidden.begin + hidden.count;
      Index j = hidden.begin;
      for (; j + kBlock <= end; j += kBlock) seen |= block_at(line + j);
      if (j == end) continue;
      // A whole vector that ends with the run lies in the memory of this line and those before it.
      if (k * lines.outerStride() + end >= kBlock) {
        const Block own = lane >= static_cast<Bits<Scalar>>(kBlock - (end - j)) - Block{};
        seen |= block_at(line + end - kBlock) & own;
      } else {
        for (; j < end; ++j) few |= magnitude_bits(line + j);
      }
    }
    std::int64_t words[kBlockBytes / sizeof(std::int64_t)];
    std::memcpy(words, &seen, sizeof(words));
    std::int64_t all = few;
    for (const std::int64_t word : words) all |= word;
    if (all != 0) return true;
  }
  return false;
}

}  // namespace

template <class Scalar>
bool any_nonzero(const Scalar* run, Index n, Index stride) {
  return fold_magnitudes(run, n, stride, [](auto a, auto b) { return a | b; }) != 0;
}

template <class Scalar>
bool all_finite(const MatrixView<Scalar>& matrix) {
  const MatrixView<Scalar> lines = along_memory(matrix);
  const Index count = lines.rows();
  const Index length = lines.cols();
  const Index outer = lines.outerStride();
  const Index inner = lines.innerStride();
  if (inner == 1 && outer == length) return run_is_finite(lines.data(), count * length, 1);
  for (Index i = 0; i < count; ++i) {
    if (!run_is_finite(lines.data() + i * outer, length, inner)) return false;
  }
  return true;
}

template <class Scalar>
bool none_is_nan(const MatrixView<Scalar>& matrix) {
  const MatrixView<Scalar> lines = along_memory(matrix);
  const Index inner = lines.innerStride();
  const Scalar infinity = std::numeric_limits<Scalar>::infinity();
  for (Index i = 0; i < lines.rows(); ++i) {
    const Scalar* run = lines.data() + i * lines.outerStride();
    // Magnitudes of NaN are larger than that of infinity.
    for (Index j = 0; j < lines.cols(); ++j) {
      if (magnitude_bits(run + j * inner) > magnitude_bits(&infinity)) return false;
    }
  }
  return true;
}

template <class Scalar>
bool is_causal(const MatrixView<Scalar>& matrix, Index shift) {
  if (matrix.cols() < 2) return false;
  // What no query sees are the ends of the rows and the heads of the columns: whichever is
  // contiguous.
  const bool by_rows = lines_are_rows(matrix);
  const MatrixView<Scalar> lines = along_memory(matrix);
  if (lines.innerStride() == 1 && lines.outerStride() > 0)
    return !any_hidden_nonzero(lines, by_rows, shift);
  for (Index k = 0; k < lines.rows(); ++k) {
    const HiddenRun hidden = hidden_run(k, by_rows, shift, lines.cols());
    const Scalar* run = lines.data() + k * lines.outerStride();
    if (any_nonzero(run + hidden.begin * lines.innerStride(), hidden.count, lines.innerStride()))
      return false;
  }
  return true;
}

template <class Scalar>
void read_lines(const MatrixView<Scalar>& matrix, Index begin, Index end, MatrixReading& reading,
                Index shift) {
  const bool by_rows = lines_are_rows(matrix);
  const MatrixView<Scalar> lines = along_memory(matrix);
  const Index length = lines.cols();
  const Index outer = lines.outerStride();
  const Index inner = lines.innerStride();
  if (!reading.finite || begin >= end) return;
  if (inner == 1 && length >= LineMagnitudes<Scalar>::kBlock) {
    read_contiguous_lines(lines, by_rows, begin, end, reading, shift);
    return;
  }
  bool& causal = reading.causal;
  for (Index k = begin; k < end && reading.finite; ++k) {
    const Scalar* run = lines.data() + k * outer;
    const HiddenRun hidden = hidden_run(k, by_rows, shift, length);
    causal = causal && !any_nonzero(run + hidden.begin * inner, hidden.count, inner);
    const Index seen = causal && !by_rows ? hidden.count : 0;
    const Index seen_count = causal ? length - hidden.count : length;
    if (!run_is_finite(run + seen * inner, seen_count, inner)) reading = {false, false};
  }
}

ATTNSCOPE_COMPILE(any_nonzero);
ATTNSCOPE_COMPILE(all_finite);
ATTNSCOPE_COMPILE(none_is_nan);
ATTNSCOPE_COMPILE(is_causal);
ATTNSCOPE_COMPILE(read_lines);

}  // namespace attnscope
