// SPDX-License-Identifier: MIT
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "kernels/graphs/laplacian.h"

namespace attnscope {

inline Symmetrize symmetrize_from(const std::string& name) {
  if (name == "mean") return Symmetrize::mean;
  if (name == "max") return Symmetrize::max;
  if (name == "min") return Symmetrize::min;
  throw pybind11::value_error("symmetrize must be 'mean', 'max' or 'min', got '" + name + "'");
}

inline GraphOptions graph_options(const std::string& symmetrize, std::optional<double> threshold,
                                  bool normalized) {
  return {symmetrize_from(symmetrize), threshold, normalized};
}

}  // namespace attnscope
