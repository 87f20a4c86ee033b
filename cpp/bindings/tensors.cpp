// SPDX-License-Identifier: MIT
#include "bindings/tensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

namespace attnscope {
namespace {

const at::Tensor& unwrap(const py::object& object, const char* what) {
  if (!THPVariable_Check(object.ptr())) {
    throw py::type_error(std::string(what) + " must be a torch.Tensor, got " +
                         std::string(py::str(py::type::of(object))));
  }
  return THPVariable_Unpack(object.ptr());
}

py::object wrap(const at::Tensor& tensor) {
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor));
}

Dtype dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kHalf:
      return Dtype::float16;
    case at::kBFloat16:
      return Dtype::bfloat16;
    case at::kFloat:
      return Dtype::float32;
    case at::kDouble:
      return Dtype::float64;
    default:
      throw py::value_error("attention must be float16, bfloat16, float32 or float64");
  }
}

// Results of fewer bytes are no question of memory.
constexpr double kWorthAsking = 1 << 20;

// An empty tensor, after a word where the machine has not that much; what cannot be had is a
// MemoryError with the size in it, not torch's RuntimeError.
at::Tensor allocated(const std::vector<Index>& shape, at::ScalarType dtype) {
  std::string sizes;
  auto bytes = static_cast<double>(at::elementSize(dtype));
  for (const Index size : shape) {
    sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
    bytes *= static_cast<double>(size);
  }
  if (bytes >= kWorthAsking) {
    py::module_::import("attnscope._memory").attr("announce_results")(bytes, sizes);
  }
  try {
    return at::empty(shape, at::TensorOptions().dtype(dtype));
  } catch (const c10::Error&) {
    PyErr_Format(PyExc_MemoryError,
                 "results of shape (%s) and %d bytes an entry do not fit in memory", sizes.c_str(),
                 static_cast<int>(at::elementSize(dtype)));
    throw py::error_already_set();
  }
}

template <class T>
Result<T> unfilled(const std::vector<Index>& leading, const std::vector<Index>& trailing,
                   at::ScalarType dtype) {
  std::vector<Index> shape = leading;
  shape.insert(shape.end(), trailing.begin(), trailing.end());
  at::Tensor tensor = allocated(shape, dtype);
  return {wrap(tensor), static_cast<T*>(tensor.data_ptr())};
}

template <class T>
Result<T> filled(const std::vector<Index>& leading, const std::vector<Index>& trailing, T fill,
                 at::ScalarType dtype) {
  const Result<T> result = unfilled<T>(leading, trailing, dtype);
  Index size = 1;
  for (const Index axis : leading) size *= axis;
  for (const Index axis : trailing) size *= axis;
  std::fill(result.data, result.data + size, fill);
  return result;
}

template <class T>
py::object copied(const std::vector<T>& values, const std::vector<Index>& shape,
                  at::ScalarType dtype) {
  at::Tensor tensor = allocated(shape, dtype);
  std::copy(values.begin(), values.end(), static_cast<T*>(tensor.data_ptr()));
  return wrap(tensor);
}

}  // namespace

bool is_plain_batch(const py::object& object) {
  if (!Py_IS_TYPE(object.ptr(), reinterpret_cast<PyTypeObject*>(THPVariableClass))) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object.ptr());
  const auto type = tensor.scalar_type();
  if (type != at::kFloat && type != at::kDouble && type != at::kHalf && type != at::kBFloat16) return false;
  if (tensor.layout() != at::kStrided || tensor.is_nested() || !tensor.device().is_cpu()) return false;
  if (tensor.requires_grad() || tensor.is_neg()) return false;
  const Index rank = tensor.dim();
  return rank >= 2 && tensor.size(rank - 1) > 0 && tensor.size(rank - 1) == tensor.size(rank - 2);
}

Batch make_batch(const py::object& attention, const py::object& lengths) {
  const at::Tensor& tensor = unwrap(attention, "attention");
  const Index rank = tensor.dim();
  if (rank < 2 || tensor.size(rank - 1) != tensor.size(rank - 2)) {
    throw py::value_error("attention must be square in its last two dimensions");
  }
  if (!tensor.device().is_cpu()) throw py::value_error("attention must be on the CPU");
  Batch batch;
  batch.owner = attention;
  batch.data = tensor.const_data_ptr();
  batch.dtype = dtype_of(tensor);
  batch.n = tensor.size(rank - 1);
  batch.row_stride = tensor.stride(rank - 2);
  batch.column_stride = tensor.stride(rank - 1);
  batch.count = 1;
  for (Index axis = 0; axis + 2 < rank; ++axis) {
    batch.sizes.push_back(tensor.size(axis));
    batch.strides.push_back(tensor.stride(axis));
    batch.count *= tensor.size(axis);
  }
  if (!lengths.is_none()) {
    const at::Tensor& entries = unwrap(lengths, "lengths");
    if (entries.scalar_type() != at::kLong || !entries.is_contiguous() ||
        entries.numel() != batch.count) {
      throw py::value_error("lengths must be a contiguous int64 tensor with one entry per matrix");
    }
    batch.lengths_owner = lengths;
    batch.lengths = entries.const_data_ptr<std::int64_t>();
    for (Index i = 0; i < batch.count; ++i) {
      if (batch.lengths[i] < 1 || batch.lengths[i] > batch.n) {
        throw py::value_error("lengths must be between 1 and n = " + std::to_string(batch.n) +
                              ", got " + std::to_string(batch.lengths[i]));
      }
    }
  }
  return batch;
}

MatrixBatch make_matrices(const py::object& matrices) {
  const at::Tensor& tensor = unwrap(matrices, "matrices");
  const Index rank = tensor.dim();
  if (rank < 2) throw py::value_error("matrices must have at least two dimensions");
  if (!tensor.device().is_cpu()) throw py::value_error("matrices must be on the CPU");
  MatrixBatch batch;
  batch.owner = matrices;
  batch.data = tensor.const_data_ptr();
  batch.dtype = dtype_of(tensor);
  batch.rows = tensor.size(rank - 2);
  batch.columns = tensor.size(rank - 1);
  batch.row_stride = tensor.stride(rank - 2);
  batch.column_stride = tensor.stride(rank - 1);
  batch.count = 1;
  for (Index axis = 0; axis + 2 < rank; ++axis) {
    batch.sizes.push_back(tensor.size(axis));
    batch.strides.push_back(tensor.stride(axis));
    batch.count *= tensor.size(axis);
  }
  return batch;
}

SupportBatch make_support(const Batch& batch, const py::object& support) {
  SupportBatch result;
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
  const at::Tensor& mask = unwrap(support, "support");
  std::vector<Index> shape = batch.sizes;
  shape.push_back(batch.n);
  shape.push_back(batch.n);
  const at::Tensor expanded = mask.expand(shape);
  const Index rank = expanded.dim();
  if (expanded.scalar_type() != at::kBool || !expanded.device().is_cpu()) {
    throw py::value_error("support must be a boolean CPU tensor");
  }
  result.owner = support;
  result.automatic = false;
  result.data = expanded.const_data_ptr<bool>();
  result.row_stride = expanded.stride(rank - 2);
  result.column_stride = expanded.stride(rank - 1);
  for (Index axis = 0; axis + 2 < rank; ++axis) {
    result.sizes.push_back(expanded.size(axis));
    result.strides.push_back(expanded.stride(axis));
  }
  return result;
}

Thresholds make_thresholds(const Batch& batch, const py::object& thresholds) {
  const at::Tensor& tensor = unwrap(thresholds, "thresholds");
  const bool each = tensor.dim() == 2;
  if (tensor.scalar_type() != at::kDouble || !tensor.is_contiguous() ||
      !(tensor.dim() == 1 || (each && tensor.size(0) == batch.count))) {
    throw py::value_error("thresholds must be a contiguous float64 tensor [T] or [count, T]");
  }
  Thresholds result;
  result.owner = thresholds;
  result.data = tensor.const_data_ptr<double>();
  result.size = tensor.size(tensor.dim() - 1);
  result.stride = each ? result.size : 0;
  return result;
}

FlagBatch make_flags(const std::vector<Index>& leading, Index n, const py::object& flags) {
  FlagBatch result;
  if (flags.is_none()) return result;
  const at::Tensor& tensor = unwrap(flags, "keys");
  if (tensor.scalar_type() != at::kBool || !tensor.device().is_cpu()) {
    throw py::value_error("marked keys must be a boolean CPU tensor");
  }
  std::vector<Index> shape = leading;
  shape.push_back(n);
  const at::Tensor expanded = tensor.expand(shape);
  result.owner = flags;
  result.data = expanded.const_data_ptr<bool>();
  result.stride = expanded.stride(-1);
  for (Index axis = 0; axis + 1 < expanded.dim(); ++axis) {
    result.sizes.push_back(expanded.size(axis));
    result.strides.push_back(expanded.stride(axis));
  }
  return result;
}

StateBatch make_states(const Batch& batch, const py::object& states) {
  const at::Tensor& tensor = unwrap(states, "states");
  const Index rank = tensor.dim();
  if (!tensor.device().is_cpu()) throw py::value_error("states must be on the CPU");
  if (rank < 2 || tensor.size(rank - 2) != batch.n) {
    throw py::value_error("states must hold one row per token");
  }
  StateBatch result;
  result.owner = states;
  result.data = tensor.const_data_ptr();
  result.dtype = dtype_of(tensor);
  result.width = tensor.size(rank - 1);
  result.row_stride = tensor.stride(rank - 2);
  result.column_stride = tensor.stride(rank - 1);
  Index count = 1;
  for (Index axis = 0; axis + 2 < rank; ++axis) {
    result.sizes.push_back(tensor.size(axis));
    result.strides.push_back(tensor.stride(axis));
    count *= tensor.size(axis);
  }
  if (count != batch.count) throw py::value_error("states must hold one entry per matrix");
  return result;
}

Index StateBatch::shared() const {
  Index count = 1;
  for (std::size_t axis = sizes.size(); axis-- > 0;) {
    if (strides[axis] != 0 && sizes[axis] != 1) break;
    count *= sizes[axis];
  }
  return count;
}

const double* numbers_of(const py::object& object, Index size) {
  const at::Tensor& tensor = unwrap(object, "numbers");
  if (tensor.scalar_type() != at::kDouble || !tensor.is_contiguous() ||
      !tensor.device().is_cpu() || tensor.numel() != size) {
    throw py::value_error("numbers must be a contiguous float64 CPU tensor with one for every query");
  }
  return tensor.const_data_ptr<double>();
}

const std::int64_t* integers_of(const py::object& object, Index size) {
  if (object.is_none()) return nullptr;
  const at::Tensor& tensor = unwrap(object, "integers");
  if (tensor.scalar_type() != at::kLong || !tensor.is_contiguous() || !tensor.device().is_cpu() ||
      tensor.numel() != size) {
    throw py::value_error("integers must be a contiguous int64 CPU tensor with one for every item");
  }
  return tensor.const_data_ptr<std::int64_t>();
}

void* entries_of(const py::object& object, Dtype dtype, Index size) {
  const at::Tensor& tensor = unwrap(object, "entries");
  if (dtype_of(tensor) != dtype || !tensor.is_contiguous() || !tensor.device().is_cpu() ||
      tensor.numel() != size) {
    throw py::value_error("entries must be a contiguous CPU tensor of the size and type of the result");
  }
  return tensor.data_ptr();
}

Result<double> make_result(const std::vector<Index>& leading, const std::vector<Index>& trailing,
                           double fill) {
  return filled<double>(leading, trailing, fill, at::kDouble);
}

Result<std::int64_t> make_result(const std::vector<Index>& leading,
                                 const std::vector<Index>& trailing, std::int64_t fill) {
  return filled<std::int64_t>(leading, trailing, fill, at::kLong);
}

Result<bool> make_result(const std::vector<Index>& leading, const std::vector<Index>& trailing,
                         bool fill) {
  return filled<bool>(leading, trailing, fill, at::kBool);
}

py::object to_tensor(const std::vector<double>& values) {
  return copied(values, {static_cast<Index>(values.size())}, at::kDouble);
}

py::object to_tensor(const std::vector<std::int64_t>& values) {
  return copied(values, {static_cast<Index>(values.size())}, at::kLong);
}

template <>
Result<double> make_empty(const std::vector<Index>& leading, const std::vector<Index>& trailing) {
  return unfilled<double>(leading, trailing, at::kDouble);
}
template <>
Result<std::int64_t> make_empty(const std::vector<Index>& leading,
                                const std::vector<Index>& trailing) {
  return unfilled<std::int64_t>(leading, trailing, at::kLong);
}
template <>
Result<std::int32_t> make_empty(const std::vector<Index>& leading,
                                const std::vector<Index>& trailing) {
  return unfilled<std::int32_t>(leading, trailing, at::kInt);
}
template <>
Result<std::int8_t> make_empty(const std::vector<Index>& leading,
                               const std::vector<Index>& trailing) {
  return unfilled<std::int8_t>(leading, trailing, at::kChar);
}

}  // namespace attnscope
