// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

// DLPack 1.x (https://dmlc.github.io/dlpack): the memory of an array, as C structures that every
// library lays out alike, and the table of C functions that a tensor class offers as
// `__dlpack_c_exchange_api__`. The layout is the standard's, which changes with its major version
// only.
namespace attnscope::dlpack {

constexpr std::uint32_t kMajorVersion = 1;

struct Version {
  std::uint32_t major;
  std::uint32_t minor;
};

enum DeviceType : std::int32_t { kCpu = 1, kCudaHost = 3, kRocmHost = 11 };

struct Device {
  DeviceType type;
  std::int32_t id;
};

enum TypeCode : std::uint8_t { kInt = 0, kFloat = 2, kBfloat = 4, kBool = 6 };

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;

  friend bool operator==(const DataType&, const DataType&) = default;
};

struct Tensor {
  void* data;
  Device device;
  std::int32_t rank;
  DataType type;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; before 1.2 null where the memory is contiguous
  std::uint64_t byte_offset;
};

// In a capsule "dltensor".
struct ManagedTensor {
  Tensor tensor;
  void* context;
  void (*deleter)(ManagedTensor*);
};

// In a capsule "dltensor_versioned".
struct VersionedTensor {
  Version version;
  void* context;
  void (*deleter)(VersionedTensor*);
  std::uint64_t flags;
  Tensor tensor;
};

// In a capsule "dlpack_exchange_api" that is an attribute of the class. What returns an int returns
// 0, or -1 with a Python exception set.
struct ExchangeApi {
  Version version;
  ExchangeApi* previous;
  int (*allocate)(Tensor* prototype, VersionedTensor** out, void* error_context,
                  void (*set_error)(void* context, const char* kind, const char* message));
  int (*managed_from_object)(void* object, VersionedTensor** out);
  int (*object_from_managed)(VersionedTensor* tensor, void** object);
  int (*tensor_from_object)(void* object, Tensor* out);  // null where the library has none
  int (*work_stream)(DeviceType type, std::int32_t id, void** stream);
};

}  // namespace attnscope::dlpack
