// SPDX-License-Identifier: MIT
#include "matrix/partial_map.h"

#include <cassert>
#include <cmath>

#include "matrix/rows.h"

namespace attnscope {

template <class Scalar>
bool read_partial_map(const MatrixView<Scalar>& attention, Index first_row, bool find_support,
                      Support& support, RowScratch& scratch) {
  const Index n = attention.rows();
  if (first_row == 0) {
    MatrixReading reading{true, find_support && n >= 2};
    read_lines(attention, 0, n, reading);
    if (find_support && reading.finite) {
      support = {reading.causal ? Support::Kind::causal : Support::Kind::full};
    }
    return reading.finite;
  }
  assert(!find_support);
  RowReader<Scalar> reader(attention, Support{}, scratch);
  for (Index i = first_row; i < n; ++i) {
    // 0·x is 0 of a finite entry and NaN of any other
    Lanes zeros{};
    for_each_lane(reader.row(i), 0, n, n, [&](Lanes lanes, Index) { zeros += lanes * 0.0; });
    for (Index k = 0; k < kPackWidth; ++k) {
      if (std::isnan(zeros[k])) return false;
    }
  }
  return true;
}

ATTNSCOPE_COMPILE(read_partial_map);

}  // namespace attnscope
