// SPDX-License-Identifier: MIT
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "matrix/matrix_view.h"

// What the bindings know of the shapes of arguments and results.
namespace attnscope {

namespace py = pybind11;

// Results of fewer bytes are no question of memory, and the question takes as long as two maps of
// 64 tokens.
inline constexpr std::int64_t kLargeResult = 1 << 26;

// What Python gives: a tensor, or what may stand in its place.
using Argument = const py::object&;

enum class Dtype { float16, bfloat16, float32, float64 };

// Matrices, or rows, in the caller's memory: nothing is copied, and `owner` keeps the Python tensor
// alive.
struct Strided {
  py::object owner;
  const void* data = nullptr;
  Dtype dtype = Dtype::float32;
  Index row_stride = 0;
  Index column_stride = 0;
  std::vector<Index> sizes;    // leading axes
  std::vector<Index> strides;  // in elements
  Index count = 1;             // of matrices: the product of the sizes

  // Of matrix `index`, in elements.
  Index offset(Index index) const {
    Index offset = 0;
    for (std::size_t axis = sizes.size(); axis-- > 0;) {
      offset += (index % sizes[axis]) * strides[axis];
      index /= sizes[axis];
    }
    return offset;
  }
};

// A [..., q, k] tensor seen as `count` matrices of `queries` rows and `n` keys, which are equal
// unless the bindings asked for rectangles. Each may be cut to its leading lengths[index] keys and
// query_lengths[index] queries, of which there may be none.
struct Batch : Strided {
  Index n = 0;
  Index queries = 0;
  const std::int64_t* lengths = nullptr;
  const std::int64_t* query_lengths = nullptr;
  const std::int64_t* positions = nullptr;  // [count, queries], the key of each query
  bool cross = false;                       // queries stand at no key

  Index length(Index index) const { return lengths == nullptr ? n : lengths[index]; }
  Index query_length(Index index) const {
    return query_lengths == nullptr ? queries : query_lengths[index];
  }
  // Where the queries of a matrix stand: at its last keys, unless the caller said otherwise.
  Support places(Index index) const;
  Index shortest() const {
    return lengths == nullptr || count == 0 ? n : *std::min_element(lengths, lengths + count);
  }
};

// A boolean [q, k] or [..., q, k] tensor beside a batch, or a rule.
struct SupportBatch : Strided {
  bool automatic = true;
  Support rule;  // used where neither automatic nor a mask

  // The support of matrix `index`, judged on `matrix` where the caller asked for "auto".
  template <class Scalar>
  Support of(Index index, const MatrixView<Scalar>& matrix) const {
    return automatic ? auto_support(matrix, batch->places(index)) : given(index);
  }
  // The support that the caller gave; where that was "auto", any.
  Support given(Index index) const {
    Support support = batch->places(index);
    support.kind = rule.kind;
    if (data == nullptr) return support;
    support.kind = Support::Kind::mask;
    support.mask = static_cast<const bool*>(data) + offset(index);
    support.mask_row_stride = row_stride;
    support.mask_column_stride = column_stride;
    return support;
  }

  const Batch* batch = nullptr;  // outlives this
};

// A [..., m, n] tensor of any shape seen as `count` matrices. An axis of stride 0 is one that
// several share.
struct MatrixBatch : Strided {
  Index rows = 0;
  Index columns = 0;

  // How many matrices that follow each other share one memory.
  Index shared() const;
};

// Numbers that every matrix of a batch is compared with: one list for all, or a list each.
struct Thresholds {
  py::object owner;
  const double* data = nullptr;
  Index size = 0;
  Index stride = 0;  // from one matrix's list to the next

  const double* of(Index index) const { return data + index * stride; }
};

// A boolean [..., n] tensor beside a batch: marked tokens, `column_stride` apart; null where
// nothing is marked.
struct FlagBatch : Strided {
  const bool* at(Index index) const {
    return data == nullptr ? nullptr : static_cast<const bool*>(data) + offset(index);
  }
};

// A result tensor, filled with the value that a matrix keeps that is not finite.
template <class T>
struct Result {
  py::object tensor;
  T* data = nullptr;
};

// Whether an object is a torch.Tensor of no other class that make_batch takes as it is: dense, on
// the CPU, of a float type, [..., n, n] with n >= 1, without a gradient or a sign beside its
// memory.
bool is_plain_batch(Argument object);

// The same of token states [..., n, d].
bool are_plain_vectors(Argument object);

// `attention`: a CPU float tensor whose last two sizes are equal; `lengths`: None or an int64
// contiguous tensor with one entry per matrix. attnscope._checks makes both so.
Batch make_batch(Argument attention, Argument lengths);

// The same of [..., q, k]. `extent`: as `lengths` of square matrices, or the four of
// attnscope._checks.Extent: keys and queries of each matrix, int64 [count] both or None both; the
// key of each query, int64 [count, q], or None; whether queries stand at no key.
Batch make_rectangles(Argument attention, Argument extent);

// `matrices`: a CPU float tensor [..., m, n]; `what` names it in an error.
MatrixBatch make_matrices(Argument matrices, const char* name = "matrices");

// `support`: "auto", "causal", "full", or a boolean tensor broadcast to the batch's shape.
SupportBatch make_support(const Batch& batch, Argument support);

// `thresholds`: a contiguous float64 tensor [T], or [count, T] with a row per matrix of the batch.
Thresholds make_thresholds(const Batch& batch, Argument thresholds);

// `flags`: None, or a boolean tensor that broadcasts to leading + [n].
FlagBatch make_flags(const std::vector<Index>& leading, Index n, Argument flags);

// `states`: a CPU float tensor [..., n, width] beside a batch, one state for each matrix in its
// order.
MatrixBatch make_states(const Batch& batch, Argument states);

// The memory of a contiguous float64 or int64 CPU tensor of `size` numbers, null where it is None.
const double* numbers_of(Argument tensor, Index size);
const std::int64_t* integers_of(Argument tensor, Index size);

// The memory of a contiguous CPU tensor of `size` numbers of that type, to be written to.
void* entries_of(Argument tensor, Dtype dtype, Index size);

// A new contiguous tensor of shape leading + trailing, not filled: of double, int64, int32, int8 or
// bool.
template <class T>
Result<T> make_empty(const std::vector<Index>& leading, const std::vector<Index>& trailing);

// The same, filled.
template <class T>
Result<T> make_result(const std::vector<Index>& leading, const std::vector<Index>& trailing,
                      T fill) {
  Result<T> result = make_empty<T>(leading, trailing);
  Index count = 1;
  for (const auto* sizes : {&leading, &trailing}) {
    for (const Index size : *sizes) count *= size;
  }
  std::fill(result.data, result.data + count, fill);
  return result;
}

// A result tensor for each of some fields of a structure, filled with those of `fill`.
template <class Struct, class... T>
class Fields {
 public:
  Fields(const std::vector<Index>& leading, const std::vector<Index>& trailing, const Struct& fill,
         T Struct::*... fields)
      : fields_(fields...), results_(make_result(leading, trailing, fill.*fields)...) {}

  // Writes the structure to entry `index` of the tensors.
  void set(std::size_t index, const Struct& from) const {
    const auto write = [&](const auto& result, auto field) { result.data[index] = from.*field; };
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      (write(std::get<k>(results_), std::get<k>(fields_)), ...);
    }(std::index_sequence_for<T...>{});
  }
  py::tuple tensors() const {
    return std::apply([](const auto&... result) { return py::make_tuple(result.tensor...); },
                      results_);
  }

 private:
  std::tuple<T Struct::*...> fields_;
  std::tuple<Result<T>...> results_;
};

// An argument by its name, or as it is where it has a default or another setting.
inline py::arg argument_of(const char* name) { return py::arg(name); }
template <class Setting>
Setting argument_of(const Setting& setting) {
  return setting;
}

// module.def with the names of the arguments in order.
template <class Function, class... Name>
void define(py::module_& module, const char* name, Function&& function, Name&&... names) {
  module.def(name, std::forward<Function>(function), argument_of(names)...);
}

}  // namespace attnscope
