// SPDX-License-Identifier: MIT
#include "bindings/tensors.h"

#include <string>
#include <type_traits>
#include <utility>

#include "bindings/exchange.h"

namespace attnscope {
namespace {

Dtype dtype_of(const ArrayView& array) {
  if (array.type() == kFloatType) return Dtype::float32;
  if (array.type() == kDoubleType) return Dtype::float64;
  if (array.type() == kHalfType) return Dtype::float16;
  if (array.type() == kBfloatType) return Dtype::bfloat16;
  throw py::value_error("attention must be float16, bfloat16, float32 or float64");
}

// Where the matrices of an array lie: its last two axes, and the leading ones.
void read_matrices(const ArrayView& array, const char* name, Strided& batch) {
  if (!array.on_cpu()) throw py::value_error(std::string(name) + " must be on the CPU");
  batch.owner = array.owner();
  batch.data = array.data();
  batch.dtype = dtype_of(array);
  batch.row_stride = array.stride(-2);
  batch.column_stride = array.stride(-1);
  for (Index axis = 0; axis + 2 < array.rank(); ++axis) {
    batch.sizes.push_back(array.size(axis));
    batch.strides.push_back(array.stride(axis));
    batch.count *= array.size(axis);
  }
}

// The strides with which `array` reads as one of that shape; an axis that it does not have, or that
// has one entry, has stride 0.
std::vector<Index> broadcast_strides(const ArrayView& array, const std::vector<Index>& shape,
                                     const std::string& name) {
  const Index rank = array.rank();
  const Index missing = static_cast<Index>(shape.size()) - rank;
  std::vector<Index> strides(shape.size(), 0);
  bool fits = missing >= 0;
  for (Index axis = 0; fits && axis < rank; ++axis) {
    const auto place = static_cast<std::size_t>(axis + missing);
    if (array.size(axis) == shape[place]) {
      strides[place] = array.stride(axis);
    } else {
      fits = array.size(axis) == 1;
    }
  }
  if (!fits) throw py::value_error(name + " does not broadcast to the shape of the attention");
  return strides;
}

// Where the flags of an array lie that broadcasts to leading + trailing, the last axis being
// columns.
void read_flags(const ArrayView& array, const std::string& name, const std::vector<Index>& leading,
                const std::vector<Index>& trailing, Strided& flags) {
  if (array.type() != kBoolType || !array.on_cpu())
    throw py::value_error(name + " must be a boolean CPU tensor");
  std::vector<Index> shape = leading;
  shape.insert(shape.end(), trailing.begin(), trailing.end());
  flags.strides = broadcast_strides(array, shape, name);
  flags.owner = array.owner();
  flags.data = array.data();
  flags.column_stride = flags.strides.back();
  flags.strides.pop_back();
  flags.sizes = leading;
}

template <class T>
constexpr dlpack::DataType type_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return kBoolType;
  } else {
    return {std::is_floating_point_v<T> ? dlpack::kFloat : dlpack::kInt, 8 * sizeof(T), 1};
  }
}

// Whether an array is what a kernel reads from end to end.
bool is_plain_list(const ArrayView& array, dlpack::DataType type) {
  return array.type() == type && array.is_contiguous() && array.on_cpu();
}

// The memory of such a list of `size` numbers, null where it is None; an error says `what` must be
// which `list`.
template <class T>
const T* list_of(Argument object, Index size, const char* name, const char* list) {
  if (object.is_none()) return nullptr;
  const ArrayView array = view_array(object, name);
  if (!is_plain_list(array, type_of<T>()) || array.count() != size) {
    throw py::value_error(std::string(name) + " must be a contiguous " + list);
  }
  return static_cast<const T*>(array.data());
}

}  // namespace

namespace {

// Whether `object` is a plain tensor in the CPU's memory, of numbers that kernels read, whose view
// fulfils `condition`.
template <class Condition>
bool is_plain(Argument object, Condition&& condition) {
  try {
    if (!is_plain_tensor(object)) return false;
    const ArrayView array = view_array(object, "attention");
    const auto type = array.type();
    if (type != kFloatType && type != kDoubleType && type != kHalfType && type != kBfloatType)
      return false;
    return array.on_cpu() && array.rank() >= 2 && condition(array);
  } catch (const py::error_already_set&) {
    return false;  // sparse or nested, which DLPack does not describe
  } catch (const NoMemory&) {
    return false;
  }
}

}  // namespace

bool is_plain_batch(Argument object) {
  return is_plain(object, [](const ArrayView& array) {
    return array.size(-1) > 0 && array.size(-1) == array.size(-2);
  });
}

bool are_plain_vectors(Argument object) {
  return is_plain(object, [](const ArrayView&) { return true; });
}

Batch make_batch(Argument attention, Argument lengths) {
  const ArrayView array = view_array(attention, "attention");
  if (array.rank() < 2 || array.size(-1) != array.size(-2)) {
    throw py::value_error("attention must be square in its last two dimensions");
  }
  Batch batch;
  read_matrices(array, "attention", batch);
  batch.n = array.size(-1);
  batch.queries = batch.n;
  batch.lengths = list_of<std::int64_t>(lengths, batch.count, "lengths",
                                        "int64 tensor with one entry per matrix");
  for (Index i = 0; batch.lengths != nullptr && i < batch.count; ++i) {
    if (batch.lengths[i] >= 1 && batch.lengths[i] <= batch.n) continue;
    throw py::value_error("lengths must be between 1 and n = " + std::to_string(batch.n) +
                          ", got " + std::to_string(batch.lengths[i]));
  }
  batch.query_lengths = batch.lengths;
  return batch;
}

Batch make_rectangles(Argument attention, Argument extent) {
  if (!py::isinstance<py::tuple>(extent)) return make_batch(attention, extent);
  const auto parts = extent.cast<py::tuple>();
  const ArrayView array = view_array(attention, "attention");
  if (array.rank() < 2 || parts.size() != 4)
    throw py::value_error("attention must have at least two dimensions, and an extent four parts");
  Batch batch;
  read_matrices(array, "attention", batch);
  batch.queries = array.size(-2);
  batch.n = array.size(-1);
  const char* const per_matrix = "int64 tensor with one entry per matrix";
  batch.lengths = list_of<std::int64_t>(parts[0], batch.count, "lengths", per_matrix);
  batch.query_lengths = list_of<std::int64_t>(parts[1], batch.count, "query_lengths", per_matrix);
  batch.positions = list_of<std::int64_t>(parts[2], batch.count * batch.queries, "query_positions",
                                          "int64 tensor with one entry per query");
  batch.cross = parts[3].cast<bool>();
  for (Index i = 0; i < batch.count; ++i) {
    const Index keys = batch.length(i);
    const Index queries = batch.query_length(i);
    if (keys >= 1 && keys <= batch.n && queries >= 0 && queries <= batch.queries) continue;
    throw py::value_error("lengths must lie within " + std::to_string(batch.queries) +
                          " queries and " + std::to_string(batch.n) + " keys, got " +
                          std::to_string(queries) + " and " + std::to_string(keys));
  }
  return batch;
}

Support Batch::places(Index index) const {
  Support support;
  if (cross) {
    support.shift = kNoKeyShift;
  } else if (positions == nullptr) {
    support.shift = length(index) - query_length(index);
  } else {
    const std::int64_t* of_map = positions + index * queries;
    support.shift = queries == 0 ? 0 : static_cast<Index>(of_map[0]);
    for (Index i = 1; i < query_length(index); ++i) {
      if (of_map[i] != of_map[0] + i) support.positions = of_map;
    }
  }
  return support;
}

MatrixBatch make_matrices(Argument matrices, const char* name) {
  const ArrayView array = view_array(matrices, name);
  if (array.rank() < 2)
    throw py::value_error(std::string(name) + " must have at least two dimensions");
  MatrixBatch batch;
  read_matrices(array, name, batch);
  batch.rows = array.size(-2);
  batch.columns = array.size(-1);
  return batch;
}

SupportBatch make_support(const Batch& batch, Argument support) {
  SupportBatch result;
  result.batch = &batch;
  if (py::isinstance<py::str>(support)) {
    const auto rule = support.cast<std::string>();
    result.automatic = rule == "auto";
    if (rule == "causal") {
      result.rule.kind = Support::Kind::causal;
    } else if (rule != "auto" && rule != "full") {
      throw py::value_error("support must be 'auto', 'causal', 'full' or a boolean tensor, got '" +
                            rule + "'");
    }
    return result;
  }
  read_flags(view_array(support, "support"), "support", batch.sizes, {batch.queries, batch.n},
             result);
  result.automatic = false;
  result.row_stride = result.strides.back();
  result.strides.pop_back();
  return result;
}

Thresholds make_thresholds(const Batch& batch, Argument thresholds) {
  const ArrayView array = view_array(thresholds, "thresholds");
  const bool per_map = array.rank() == 2;
  if (!is_plain_list(array, kDoubleType) ||
      !(array.rank() == 1 || (per_map && array.size(0) == batch.count))) {
    throw py::value_error("thresholds must be a contiguous float64 tensor [T] or [count, T]");
  }
  Thresholds result;
  result.owner = array.owner();
  result.data = static_cast<const double*>(array.data());
  result.size = array.size(-1);
  result.stride = per_map ? result.size : 0;
  return result;
}

FlagBatch make_flags(const std::vector<Index>& leading, Index n, Argument flags) {
  FlagBatch result;
  if (!flags.is_none()) read_flags(view_array(flags, "keys"), "marked keys", leading, {n}, result);
  return result;
}

MatrixBatch make_states(const Batch& batch, Argument states) {
  MatrixBatch result = make_matrices(states, "states");
  if (result.rows != batch.n) throw py::value_error("states must hold one row per key");
  if (result.count != batch.count) throw py::value_error("states must hold one entry per matrix");
  return result;
}

Index MatrixBatch::shared() const {
  Index shared = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    if (strides[axis] != 0 && sizes[axis] != 1) break;
    shared *= sizes[axis];
  }
  return shared;
}

const double* numbers_of(Argument object, Index size) {
  return list_of<double>(object, size, "numbers", "float64 CPU tensor with one for every query");
}

const std::int64_t* integers_of(Argument object, Index size) {
  return list_of<std::int64_t>(object, size, "integers",
                               "int64 CPU tensor with one for every item");
}

void* entries_of(Argument object, Dtype dtype, Index size) {
  const ArrayView array = view_array(object, "entries");
  if (dtype_of(array) != dtype || !array.is_contiguous() || !array.on_cpu() ||
      array.count() != size) {
    throw py::value_error(
        "entries must be a contiguous CPU tensor of the size and type of the result");
  }
  return array.writable();
}

// After a word where the machine has not that much memory; what cannot be had is a
// MemoryError with the size in it.
template <class T>
Result<T> make_empty(const std::vector<Index>& leading, const std::vector<Index>& trailing) {
  std::vector<Index> shape = leading;
  shape.insert(shape.end(), trailing.begin(), trailing.end());
  auto bytes = static_cast<double>(sizeof(T));
  for (const Index size : shape) bytes *= static_cast<double>(size);
  const auto sizes = [&] {
    std::string text;
    for (const Index size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
    return text;
  };
  if (bytes >= kLargeResult) {
    py::module_::import("attnscope._memory").attr("announce_results")(bytes, sizes());
  }
  NewTensor tensor = new_tensor(shape, type_of<T>());
  if (!tensor.tensor) {
    PyErr_Format(PyExc_MemoryError,
                 "results of shape (%s) and %d bytes an entry do not fit in memory",
                 sizes().c_str(), static_cast<int>(sizeof(T)));
    throw py::error_already_set();
  }
  return {std::move(tensor.tensor), static_cast<T*>(tensor.data)};
}
template Result<double> make_empty(const std::vector<Index>&, const std::vector<Index>&);
template Result<std::int64_t> make_empty(const std::vector<Index>&, const std::vector<Index>&);
template Result<std::int32_t> make_empty(const std::vector<Index>&, const std::vector<Index>&);
template Result<std::int8_t> make_empty(const std::vector<Index>&, const std::vector<Index>&);
template Result<bool> make_empty(const std::vector<Index>&, const std::vector<Index>&);

}  // namespace attnscope
