// SPDX-License-Identifier: MIT
#include "bindings/exchange.h"

#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

namespace attnscope {
namespace {

constexpr const char* kApiAttribute = "__dlpack_c_exchange_api__";

// Of this process's torch; never freed, like the module itself.
struct Torch {
  PyTypeObject* tensor = nullptr;
  const dlpack::ExchangeApi* api = nullptr;  // null where torch offers none
  PyObject* module = nullptr;
  PyObject* to_capsule = nullptr;
  PyObject* api_name = nullptr;
  getter requires_grad = nullptr;
  void* requires_grad_closure = nullptr;
  PyCFunction is_neg = nullptr;
};
Torch torch;

// The table of functions that a class offers, of the major version that is known here, or null.
const dlpack::ExchangeApi* api_of(PyTypeObject* type) {
  if (type == torch.tensor) return torch.api;
  const auto capsule = py::reinterpret_steal<py::object>(
      PyObject_GetAttr(reinterpret_cast<PyObject*>(type), torch.api_name));
  if (!capsule) {
    PyErr_Clear();
    return nullptr;
  }
  const auto* api = static_cast<const dlpack::ExchangeApi*>(
      PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (api == nullptr) PyErr_Clear();
  while (api != nullptr && api->version.major != dlpack::kMajorVersion) api = api->previous;
  return api == nullptr || api->tensor_from_object == nullptr ? nullptr : api;
}

// What the object's own __dlpack__ gives: read-only memory too, where the producer knows that
// version.
py::object capsule_of(const py::object& object) {
  if (PyObject_TypeCheck(object.ptr(), torch.tensor)) {
    return py::reinterpret_borrow<py::object>(torch.to_capsule)(object);
  }
  const py::object method = object.attr("__dlpack__");
  try {
    return method(py::arg("max_version") = py::make_tuple(dlpack::kMajorVersion, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method();
}

const dlpack::Tensor& tensor_in(const py::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned") != 0) {
    const auto* managed = static_cast<const dlpack::VersionedTensor*>(
        PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (managed->version.major != dlpack::kMajorVersion) {
      throw py::type_error("an array of DLPack " + std::to_string(managed->version.major) +
                           " cannot be read, only of DLPack 1");
    }
    return managed->tensor;
  }
  const auto* managed =
      static_cast<const dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  return managed->tensor;
}

bool true_of(PyObject* answer) {
  const bool is_true = answer == Py_True;
  if (answer == nullptr) throw py::error_already_set();
  Py_DECREF(answer);
  return is_true;
}

constexpr std::size_t kAlignment = 64;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// One piece of memory: what describes the tensor, its sizes, its strides, its entries.
NewTensor allocated_here(const std::vector<Index>& shape, dlpack::DataType type) {
  std::size_t bytes = type.bits / 8;
  for (const Index size : shape) bytes *= static_cast<std::size_t>(size);
  const std::size_t header =
      aligned(sizeof(dlpack::VersionedTensor) + 2 * shape.size() * sizeof(std::int64_t));
  auto* const block =
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, header + aligned(bytes)));
  if (block == nullptr) return {};
  auto* const sizes = reinterpret_cast<std::int64_t*>(block + sizeof(dlpack::VersionedTensor));
  auto* const strides = sizes + shape.size();
  std::int64_t step = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    sizes[axis] = shape[axis];
    strides[axis] = step;
    step *= shape[axis];
  }
  void* const data = block + header;
  auto* const managed = new (block) dlpack::VersionedTensor{
      {dlpack::kMajorVersion, 0},
      nullptr,
      [](dlpack::VersionedTensor* self) { std::free(self); },
      0,
      {data, {dlpack::kCpu, 0}, static_cast<std::int32_t>(shape.size()), type, sizes, strides, 0}};
  void* object = nullptr;
  if (torch.api->object_from_managed(managed, &object) != 0) throw py::error_already_set();
  return {py::reinterpret_steal<py::object>(static_cast<PyObject*>(object)), data};
}

NewTensor allocated_by_torch(const std::vector<Index>& shape, dlpack::DataType type) {
  const char* const name = type == kDoubleType  ? "float64"
                           : type == kInt64Type ? "int64"
                           : type == kInt32Type ? "int32"
                           : type == kInt8Type  ? "int8"
                                                : "bool";
  const auto module = py::reinterpret_borrow<py::object>(torch.module);
  py::tuple sizes(shape.size());
  for (std::size_t axis = 0; axis < shape.size(); ++axis) sizes[axis] = shape[axis];
  try {
    const py::object tensor = module.attr("empty")(sizes, py::arg("dtype") = module.attr(name),
                                                   py::arg("device") = "cpu");
    return {tensor, view_array(tensor, "result").writable()};
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    return {};  // torch's word for memory that it does not get
  }
}

}  // namespace

ArrayView::ArrayView(py::object owner, const dlpack::Tensor& tensor, const char* name)
    : owner_(std::move(owner)), tensor_(tensor), strides_(tensor.strides) {
  if (strides_ == nullptr) {
    contiguous_.resize(static_cast<std::size_t>(rank()));
    std::int64_t step = 1;
    for (Index axis = rank(); axis-- > 0;) {
      contiguous_[static_cast<std::size_t>(axis)] = step;
      step *= tensor_.shape[axis];
    }
    strides_ = contiguous_.data();
  }
  if (tensor.data == nullptr && count() > 0) throw NoMemory(std::string(name) + " holds no memory");
  data_ = static_cast<char*>(tensor.data) + tensor.byte_offset;
}

Index ArrayView::count() const {
  Index count = 1;
  for (Index axis = 0; axis < rank(); ++axis) count *= size(axis);
  return count;
}

bool ArrayView::is_contiguous() const {
  Index step = 1;
  bool contiguous = true;
  for (Index axis = rank(); axis-- > 0;) {
    if (size(axis) == 0) return true;
    if (size(axis) != 1 && stride(axis) != step) contiguous = false;
    step *= size(axis);
  }
  return contiguous;
}

void find_exchange() {
  const py::module_ module = py::module_::import("torch");
  torch.module = py::object(module).release().ptr();
  torch.tensor =
      reinterpret_cast<PyTypeObject*>(module.attr("Tensor").cast<py::object>().release().ptr());
  torch.to_capsule =
      module.attr("utils").attr("dlpack").attr("to_dlpack").cast<py::object>().release().ptr();
  torch.api_name = PyUnicode_InternFromString(kApiAttribute);
  // The class's own C functions: looking them up by name for each tensor takes as long as all the
  // rest.
  const py::object requires_grad = module.attr("Tensor").attr("requires_grad");
  const py::object is_neg = module.attr("Tensor").attr("is_neg");
  if (!Py_IS_TYPE(requires_grad.ptr(), &PyGetSetDescr_Type) ||
      !Py_IS_TYPE(is_neg.ptr(), &PyMethodDescr_Type)) {
    throw py::import_error("attnscope: torch.Tensor is no class of C functions here");
  }
  const PyGetSetDef* const property =
      reinterpret_cast<PyGetSetDescrObject*>(requires_grad.ptr())->d_getset;
  torch.requires_grad = property->get;
  torch.requires_grad_closure = property->closure;
  torch.is_neg = reinterpret_cast<PyMethodDescrObject*>(is_neg.ptr())->d_method->ml_meth;
  PyTypeObject* const type = std::exchange(torch.tensor, nullptr);
  torch.api = api_of(type);
  torch.tensor = type;
}

const char* exchange_name() {
  return torch.api == nullptr ? "DLPack capsules" : "DLPack's C exchange interface";
}

ArrayView view_array(const py::object& object, const char* name) {
  if (const auto* api = api_of(Py_TYPE(object.ptr()))) {
    dlpack::Tensor tensor;
    if (api->tensor_from_object(object.ptr(), &tensor) != 0) throw py::error_already_set();
    return ArrayView(object, tensor, name);
  }
  if (!PyObject_TypeCheck(object.ptr(), torch.tensor) && !py::hasattr(object, "__dlpack__")) {
    throw py::type_error(std::string(name) + " must be a torch.Tensor, got " +
                         std::string(py::str(py::type::of(object))));
  }
  py::object capsule = capsule_of(object);
  const dlpack::Tensor& tensor = tensor_in(capsule);
  return ArrayView(std::move(capsule), tensor, name);
}

bool is_plain_tensor(const py::object& object) {
  return Py_IS_TYPE(object.ptr(), torch.tensor) &&
         !true_of(torch.requires_grad(object.ptr(), torch.requires_grad_closure)) &&
         !true_of(torch.is_neg(object.ptr(), nullptr));
}

bool holds_memory(const py::object& object) {
  try {
    view_array(object, "tensor");
  } catch (const NoMemory&) {
    return false;
  } catch (py::error_already_set& error) {
    // Batches of torch.func say so themselves. What DLPack does not describe is refused by its
    // dtype or layout.
    return !(error.matches(PyExc_RuntimeError) &&
             std::string(error.what()).find("storage") != std::string::npos);
  }
  return true;
}

NewTensor new_tensor(const std::vector<Index>& shape, dlpack::DataType type) {
  double bytes = type.bits / 8;
  for (const Index size : shape) bytes *= static_cast<double>(size);
  if (bytes > static_cast<double>(PTRDIFF_MAX / 2)) return {};
  return torch.api == nullptr ? allocated_by_torch(shape, type) : allocated_here(shape, type);
}

}  // namespace attnscope
