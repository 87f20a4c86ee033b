// SPDX-License-Identifier: MIT
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "bindings/dlpack.h"
#include "simd/memory.h"

// Arrays in and tensors out through DLPack, so that one build serves every torch. Nothing here or
// above includes a header of torch.
namespace attnscope {

namespace py = pybind11;

inline constexpr dlpack::DataType kHalfType{dlpack::kFloat, 16, 1};
inline constexpr dlpack::DataType kBfloatType{dlpack::kBfloat, 16, 1};
inline constexpr dlpack::DataType kFloatType{dlpack::kFloat, 32, 1};
inline constexpr dlpack::DataType kDoubleType{dlpack::kFloat, 64, 1};
inline constexpr dlpack::DataType kInt8Type{dlpack::kInt, 8, 1};
inline constexpr dlpack::DataType kInt32Type{dlpack::kInt, 32, 1};
inline constexpr dlpack::DataType kInt64Type{dlpack::kInt, 64, 1};
inline constexpr dlpack::DataType kBoolType{dlpack::kBool, 8, 1};

// A TypeError in Python: a tensor of entries that are not in memory, as functional, fake and zero
// tensors are.
struct NoMemory : py::type_error {
  using py::type_error::type_error;
};

// An array's memory, borrowed: nothing is copied. `owner` keeps it alive, and the shape as long as
// nobody reshapes the array in place.
class ArrayView {
 public:
  // `what` names it in a NoMemory.
  ArrayView(py::object owner, const dlpack::Tensor& tensor, const char* name);
  ArrayView(const ArrayView&) = delete;
  ArrayView& operator=(const ArrayView&) = delete;

  const py::object& owner() const { return owner_; }
  const void* data() const { return data_; }
  void* writable() const { return data_; }
  dlpack::DataType type() const { return tensor_.type; }
  bool on_cpu() const {
    const auto device = tensor_.device.type;
    return device == dlpack::kCpu || device == dlpack::kCudaHost || device == dlpack::kRocmHost;
  }
  Index rank() const { return tensor_.rank; }
  // `axis` counts from the end where it is negative.
  Index size(Index axis) const { return tensor_.shape[axis < 0 ? axis + rank() : axis]; }
  Index stride(Index axis) const { return strides_[axis < 0 ? axis + rank() : axis]; }
  Index count() const;
  bool is_contiguous() const;

 private:
  py::object owner_;
  dlpack::Tensor tensor_;
  std::vector<std::int64_t> contiguous_;  // where the producer gives no strides
  const std::int64_t* strides_;
  void* data_;
};

// Looks up what torch offers; called once, when the module is loaded.
void find_exchange();

// How tensors come in and go out in this process.
const char* exchange_name();

// The memory of a tensor of torch, or of another array that speaks DLPack; `what` names it in a
// TypeError.
ArrayView view_array(const py::object& object, const char* name);

// Whether `object` is a torch.Tensor of no other class, without a gradient or a sign beside its
// memory.
bool is_plain_tensor(const py::object& object);

// False for a tensor of entries that are not in memory.
bool holds_memory(const py::object& object);

struct NewTensor {
  py::object tensor;
  void* data;
};

// A contiguous torch.Tensor on the CPU, its entries not set; no tensor where memory lacks.
NewTensor new_tensor(const std::vector<Index>& shape, dlpack::DataType type);

}  // namespace attnscope
