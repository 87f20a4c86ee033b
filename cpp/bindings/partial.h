// SPDX-License-Identifier: MIT
#pragma once

#include "bindings/batched.h"

// Maps of which the last rows are in memory, and the answers that they are asked about.
namespace attnscope {

// Square maps of which the rows from `first_row` on exist; no other may be read.
struct PartialBatch {
  Batch maps;
  Index first_row = 0;
};

// `attention`: a CPU float tensor [..., q, k], the last q <= k rows of maps of k tokens; `lengths`
// for q = k.
PartialBatch make_partial(Argument attention, Argument lengths);

// `width` numbers for each map in order, or one list for all: contiguous int64.
class AnswerList {
 public:
  AnswerList(Argument answers, Index count, Index width);
  const std::int64_t* of(Index index) const { return data_ + index * stride_; }

 private:
  const std::int64_t* data_;
  Index stride_;
};

}  // namespace attnscope
