// SPDX-License-Identifier: MIT
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "simd/precision.h"

namespace attnscope {

inline Precision precision_from(const std::string& name) {
  if (name == "exact") return Precision::exact;
  if (name == "fast") return Precision::fast;
  throw pybind11::value_error("precision must be 'exact' or 'fast', got '" + name + "'");
}

}  // namespace attnscope
