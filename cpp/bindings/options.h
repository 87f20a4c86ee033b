// SPDX-License-Identifier: MIT
#pragma once

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/tensors.h"
#include "graphs/graph_options.h"
#include "signals/signal.h"
#include "simd/precision.h"

// Options of graphs, signals and precision from what Python calls them.
namespace attnscope {

inline Symmetrize symmetrize_from(const std::string& name) {
  if (name == "mean") return Symmetrize::mean;
  if (name == "max") return Symmetrize::max;
  if (name == "min") return Symmetrize::min;
  throw py::value_error("symmetrize must be 'mean', 'max' or 'min', got '" + name + "'");
}

// The last argument of functions that have a fast way, "exact" where nobody asks for it.
inline py::arg_v precision_argument() { return py::arg_v("precision", std::string("exact")); }

inline Precision precision_from(const std::string& name) {
  if (name == "exact") return Precision::exact;
  if (name == "fast") return Precision::fast;
  throw py::value_error("precision must be 'exact' or 'fast', got '" + name + "'");
}

// Results, and behind them under `fast` the number of maps that were measured exactly after all.
inline py::tuple with_fallbacks(const py::tuple& results, bool fast, Index fallbacks) {
  return fast ? py::tuple(results + py::make_tuple(fallbacks)) : results;
}

// `signal`: "rows", "last", "mean" or "offset"; attnscope.metrics.signals.power_spectrum sees to
// it.
inline SignalOptions signal_options(const std::string& signal, bool drop_first, bool detrend,
                                    Index min_keys) {
  using Kind = SignalOptions::Kind;
  const Kind kind = signal == "last"   ? Kind::last
                    : signal == "mean" ? Kind::mean
                    : signal == "rows" ? Kind::rows
                                       : Kind::offset;
  return {kind, drop_first, detrend, min_keys};
}

// The axes of a result behind the batch's: a query axis where each query is a signal, then
// `fields`.
inline std::vector<Index> signal_axes(const SignalOptions& options, Index queries, Index fields) {
  if (options.kind == SignalOptions::Kind::rows) return {queries, fields};
  return {fields};
}

}  // namespace attnscope
