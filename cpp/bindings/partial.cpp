// SPDX-License-Identifier: MIT
#include "bindings/partial.h"

namespace attnscope {

PartialBatch make_partial(Argument attention, Argument lengths) {
  MatrixBatch rows = make_matrices(attention, "attention");
  if (rows.rows == rows.columns) return {make_batch(attention, lengths), 0};
  if (rows.rows > rows.columns || rows.rows == 0 || !lengths.is_none()) {
    throw py::value_error("attention must hold the last rows of square maps, without lengths");
  }
  PartialBatch partial;
  partial.first_row = rows.columns - rows.rows;
  const Index bytes = rows.dtype == Dtype::float64 ? 8 : rows.dtype == Dtype::float32 ? 4 : 2;
  // where row 0 would be; kernels read no row before the first that exists
  const Index before = partial.first_row * rows.row_stride * bytes;
  const Index n = rows.columns;
  static_cast<Strided&>(partial.maps) = std::move(static_cast<Strided&>(rows));
  partial.maps.data = static_cast<const char*>(partial.maps.data) - before;
  partial.maps.n = n;
  partial.maps.queries = n;
  return partial;
}

AnswerList::AnswerList(Argument answers, Index count, Index width) {
  const bool single = py::len(answers) == static_cast<std::size_t>(width);
  data_ = integers_of(answers, single ? width : width * count);
  stride_ = single ? 0 : width;
}

}  // namespace attnscope
