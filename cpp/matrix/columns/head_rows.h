// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "matrix/matrix_view.h"
#include "matrix/widen.h"
#include "simd/memory.h"

// Only kernel sources include it.
namespace attnscope {

// Some rows and columns at a time of maps, their rows contiguous: in place where they are, or
// copied, from all maps together where these lie side by side in memory, entry by entry, so that a
// line of memory is read once for all of them.
template <class Scalar>
class HeadRows {
 public:
  HeadRows(std::vector<MatrixView<Scalar>> maps, AlignedBuffer& buffer)
      : maps_(std::move(maps)), buffer_(buffer) {
    for (std::size_t h = 0; h < maps_.size(); ++h) {
      const MatrixView<Scalar>& map = maps_[h];
      in_place_ = in_place_ && map.innerStride() == 1;
      side_by_side_ = side_by_side_ && map.data() == maps_[0].data() + h &&
                      map.outerStride() == maps_[0].outerStride() &&
                      map.innerStride() == maps_[0].innerStride();
    }
  }

  Index count() const { return static_cast<Index>(maps_.size()); }

  // Makes rows [row, row + rows) at hand from column `column` on, `columns` of them.
  void read(Index row, Index rows, Index column, Index columns) {
    row_ = row;
    column_ = column;
    columns_ = columns;
    if (in_place_) return;
    constexpr Index kLine = 64 / static_cast<Index>(sizeof(Scalar));
    // The first-level cache holds few lines whose places differ by a power of two: copies begin an
    // odd number of lines after one another.
    apart_ = ((rows * columns + kLine - 1) / kLine | 1) * kLine;
    const Index bytes = count() * apart_ * static_cast<Index>(sizeof(Scalar));
    copy_ = reinterpret_cast<Scalar*>(buffer_.resize((bytes + 7) / 8));
    const auto part = [&](const MatrixView<Scalar>& map) {
      return matrix_view(&map.coeffRef(row, column), rows, columns, map.outerStride(),
                         map.innerStride());
    };
    if (side_by_side_) return separate(part(maps_[0]), count(), apart_, copy_);
    for (Index h = 0; h < count(); ++h) separate(part(maps_[h]), 1, apart_, copy_ + h * apart_);
  }

  // What was read of map h, and how many numbers a row is from the next.
  const Scalar* rows(Index h) const {
    return in_place_ ? maps_[h].data() + row_ * maps_[h].outerStride() + column_
                     : copy_ + h * apart_;
  }
  Index stride(Index h) const { return in_place_ ? maps_[h].outerStride() : columns_; }
  // Entries of a row that may be read.
  Index readable(Index h) const { return in_place_ ? maps_[h].cols() - column_ : columns_; }

 private:
  std::vector<MatrixView<Scalar>> maps_;
  AlignedBuffer& buffer_;
  bool in_place_ = true;
  bool side_by_side_ = true;
  Index row_ = 0;
  Index column_ = 0;
  Index columns_ = 0;
  Index apart_ = 0;
  Scalar* copy_ = nullptr;
};

}  // namespace attnscope
