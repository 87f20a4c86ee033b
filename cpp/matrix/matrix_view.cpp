// SPDX-License-Identifier: MIT
#include "matrix/matrix_view.h"

#include <algorithm>
#include <cstring>

#include "simd/entry_bits.h"
#include "simd/hidden_entries.h"

namespace attnscope {
namespace {

// Lines of which it is looked at what they hide before the rest of them is read.
constexpr Index kBandBytes = Index{1} << 15;
// Bytes of what is looked at in one go in lines that are shorter than a vector.
constexpr std::size_t kShortBlock = 16;

// A whole number of the size of an entry. Magnitudes have no sign bit, so signed numbers order
// them, and processors compare those.
template <class Scalar>
using Bits = typename EntryBits<Scalar>::Number;

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
  Bits<Scalar> folded = 0;
  const auto add = [&](Bits<Scalar> bits) {
    folded = static_cast<Bits<Scalar>>(fold(folded, bits));
  };
  const auto add_blocks = [&]<class Blocks>(Blocks) {
    constexpr Index kBlock = Blocks::kEntries;
    typename Blocks::Block block{};
    const auto look = [&](Index j) {
      block = fold(block, Blocks::at(run + j) & std::numeric_limits<Bits<Scalar>>::max());
    };
    for (Index j = 0; j + kBlock <= n; j += kBlock) look(j);
    look(n - kBlock);
    for (Index k = 0; k < kBlock; ++k) add(block[k]);
  };
  if (stride == 1 && n >= EntryBits<Scalar>::kEntries) {
    add_blocks(EntryBits<Scalar>{});
  } else if (stride == 1 && n >= EntryBits<Scalar, kShortBlock>::kEntries) {
    add_blocks(EntryBits<Scalar, kShortBlock>{});
  } else {
    for (Index j = 0; j < n; ++j) add(magnitude_bits(run + j * stride));
  }
  return folded;
}

template <class Scalar>
bool run_is_finite(const Scalar* run, Index n, Index stride) {
  if (stride == 1 && n >= FiniteEntries<Scalar>::kEntries) {
    FiniteEntries<Scalar> entries;
    entries.add(run, n);
    if (entries.all_are_surely_finite()) return true;
    if constexpr (std::is_same_v<Scalar, double>) return false;
  }
  const Scalar infinity = std::numeric_limits<Scalar>::infinity();
  const auto larger = [](auto a, auto b) { return b > a ? b : a; };
  return fold_magnitudes(run, n, stride, larger) < magnitude_bits(&infinity);
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

// Whether contiguous lines, rows of a matrix or columns of it, hide an entry that is not 0 where
// each is at least kBytes long.
template <std::size_t kBytes, class Scalar>
bool any_hidden_in_blocks(const MatrixView<Scalar>& lines, bool by_rows, Index shift, Index begin,
                          Index end) {
  const Index length = lines.cols();
  const Index outer = lines.outerStride();
  // Few at a time, so that a map that is not causal costs little.
  for (Index first = begin; first < end;) {
    const Index last = std::min<Index>(first == begin ? first + 8 : first + 32, end);
    const Scalar* line = lines.data() + first * outer;
    HiddenEntries<Scalar, kBytes> hidden;
    if (by_rows) {
      hidden.add_ends(line, outer, length, first + shift + 1, 1, last - first);
    } else {
      hidden.add_heads(line, outer, length, first - shift, last - first);
    }
    if (hidden.any()) return true;
    first = last;
  }
  return false;
}

// The same of lines of any length.
template <class Scalar>
bool any_hidden_nonzero(const MatrixView<Scalar>& lines, bool by_rows, Index shift, Index begin,
                        Index end) {
  const Index length = lines.cols();
  const Index inner = lines.innerStride();
  const std::size_t bytes = inner == 1 ? static_cast<std::size_t>(length) * sizeof(Scalar) : 0;
  if (bytes >= kVectorBytes)
    return any_hidden_in_blocks<kVectorBytes>(lines, by_rows, shift, begin, end);
  if (bytes >= kShortBlock)
    return any_hidden_in_blocks<kShortBlock>(lines, by_rows, shift, begin, end);
  for (Index k = begin; k < end; ++k) {
    const HiddenRun hidden = hidden_run(k, by_rows, shift, length);
    const Scalar* run = lines.data() + k * lines.outerStride();
    if (any_nonzero(run + hidden.begin * inner, hidden.count, inner)) return true;
  }
  return false;
}

// Whether lines are finite: in one run where they lie behind each other.
template <class Scalar>
bool lines_are_finite(const MatrixView<Scalar>& lines, Index begin, Index end) {
  const Index length = lines.cols();
  const Index outer = lines.outerStride();
  const Index inner = lines.innerStride();
  const Scalar* first = lines.data() + begin * outer;
  if (inner == 1 && outer == length) return run_is_finite(first, (end - begin) * length, 1);
  if (inner == 1 && length >= FiniteEntries<Scalar>::kEntries) {
    FiniteEntries<Scalar> entries;
    entries.add_runs(first, outer, length, end - begin);
    if (entries.all_are_surely_finite()) return true;
    if constexpr (std::is_same_v<Scalar, double>) return false;
  }
  for (Index k = 0; k < end - begin; ++k) {
    if (!run_is_finite(first + k * outer, length, inner)) return false;
  }
  return true;
}

// The part of all lines that may hold what a query of a causal map sees in one of [begin, end):
// columns of it, a vector at least where lines are that long.
template <class Scalar>
MatrixView<Scalar> seen_of_lines(const MatrixView<Scalar>& lines, bool by_rows, Index shift,
                                 Index begin, Index end) {
  const Index length = lines.cols();
  const Index least = std::min(length, FiniteEntries<Scalar>::kEntries);
  const Index first = by_rows ? 0 : std::clamp<Index>(begin - shift, 0, length - least);
  const Index last = by_rows ? std::clamp<Index>(end + shift, least, length) : length;
  return matrix_view(lines.data() + first * lines.innerStride(), lines.rows(), last - first,
                     lines.outerStride(), lines.innerStride());
}

}  // namespace

template <class Scalar>
bool any_nonzero(const Scalar* run, Index n, Index stride) {
  return fold_magnitudes(run, n, stride, [](auto a, auto b) { return a | b; }) != 0;
}

template <class Scalar>
bool all_finite(const MatrixView<Scalar>& matrix) {
  const MatrixView<Scalar> lines = along_memory(matrix);
  return lines_are_finite(lines, 0, lines.rows());
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
  const MatrixView<Scalar> lines = along_memory(matrix);
  return !any_hidden_nonzero(lines, lines_are_rows(matrix), shift, 0, lines.rows());
}

template <class Scalar>
void read_lines(const MatrixView<Scalar>& matrix, Index begin, Index end, MatrixReading& reading,
                Index shift) {
  const bool by_rows = lines_are_rows(matrix);
  const MatrixView<Scalar> lines = along_memory(matrix);
  const Index bytes = lines.cols() * static_cast<Index>(sizeof(Scalar));
  const Index band = std::max<Index>(8, kBandBytes / std::max<Index>(1, bytes));
  for (Index first = begin; first < end && reading.finite; first += band) {
    const Index last = std::min(first + band, end);
    reading.causal = reading.causal && !any_hidden_nonzero(lines, by_rows, shift, first, last);
    // What is hidden is 0 where the map is causal so far.
    const MatrixView<Scalar> looked_at =
        reading.causal ? seen_of_lines(lines, by_rows, shift, first, last) : lines;
    if (!lines_are_finite(looked_at, first, last)) reading = {false, false};
  }
}

ATTNSCOPE_COMPILE(any_nonzero);
ATTNSCOPE_COMPILE(all_finite);
ATTNSCOPE_COMPILE(none_is_nan);
ATTNSCOPE_COMPILE(is_causal);
ATTNSCOPE_COMPILE(read_lines);

}  // namespace attnscope
