// SPDX-License-Identifier: MIT
#include "kernels/sinks.h"

#include <pybind11/stl.h>

#include "bindings/batched.h"

namespace attnscope {
namespace {

py::tuple incoming(const py::object& attention, const py::object& lengths,
                   const py::object& support) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> result = make_result(batch.sizes, {batch.n}, kNaN);
  const Index spoiled = per_matrix<SinkWorkspace>(batch, [&](const auto& view, Index index,
                                                             auto& workspace) {
    incoming_attention(view, supports.of(index, view), result.data + index * batch.n, workspace);
  });
  return py::make_tuple(result.tensor, spoiled);
}

py::tuple tokens(const py::object& attention, const py::object& lengths, const py::object& support,
                 std::optional<double> tau, double gamma, double min_visibility) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const SinkRule rule{tau, gamma, min_visibility};
  const Result<bool> result = make_result(batch.sizes, {batch.n}, false);
  const Index spoiled =
      per_matrix<SinkWorkspace>(batch, [&](const auto& view, Index index, auto& workspace) {
        sink_tokens(view, supports.of(index, view), rule, result.data + index * batch.n, workspace);
      });
  return py::make_tuple(result.tensor, spoiled);
}

py::tuple position(const py::object& attention, const py::object& lengths,
                   const py::object& support, double min_visibility) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<std::int64_t> result = make_result(batch.sizes, {}, std::int64_t{-1});
  const Index spoiled =
      per_matrix<SinkWorkspace>(batch, [&](const auto& view, Index index, auto& workspace) {
        result.data[index] =
            sink_position(view, supports.of(index, view), min_visibility, workspace);
      });
  return py::make_tuple(result.tensor, spoiled);
}

py::tuple share(const py::object& attention, const py::object& lengths, const py::object& support,
                Index first, Index queries) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> shares = make_result(batch.sizes, {}, kNaN);
  const Result<double> uniforms = make_result(batch.sizes, {}, kNaN);
  const Index spoiled = per_matrix<NoWorkspace>(batch, [&](const auto& view, Index index, auto&) {
    const SinkShare found = sink_share(view, supports.of(index, view), first, queries);
    shares.data[index] = found.share;
    uniforms.data[index] = found.uniform;
  });
  return py::make_tuple(shares.tensor, uniforms.tensor, spoiled);
}

py::tuple top(const py::object& attention, const py::object& lengths, const py::object& support,
              Index k) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> result = make_result(batch.sizes, {}, kNaN);
  const Index spoiled =
      per_matrix<SinkWorkspace>(batch, [&](const auto& view, Index index, auto& workspace) {
        result.data[index] = top_mass(view, supports.of(index, view), k, workspace);
      });
  return py::make_tuple(result.tensor, spoiled);
}

}  // namespace

void bind_sinks(py::module_& module) {
  module.def("incoming_attention", &incoming, py::arg("attention"), py::arg("lengths"),
             py::arg("support"));
  module.def("sink_tokens", &tokens, py::arg("attention"), py::arg("lengths"), py::arg("support"),
             py::arg("tau"), py::arg("gamma"), py::arg("min_visibility"));
  module.def("sink_position", &position, py::arg("attention"), py::arg("lengths"),
             py::arg("support"), py::arg("min_visibility"));
  module.def("sink_share", &share, py::arg("attention"), py::arg("lengths"), py::arg("support"),
             py::arg("first"), py::arg("queries"));
  module.def("top_mass", &top, py::arg("attention"), py::arg("lengths"), py::arg("support"),
             py::arg("k"));
}

}  // namespace attnscope
