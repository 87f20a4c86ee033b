// SPDX-License-Identifier: MIT
#include <pybind11/pybind11.h>

#include "bindings/exchange.h"
#include "bindings/tensors.h"
#include "bindings/threads.h"

namespace py = pybind11;

namespace attnscope {
void bind_validity(py::module_&);
void bind_cloud_distances(py::module_&);
void bind_fragmentation(py::module_&);
void bind_local_dimension(py::module_&);
void bind_fiedler(py::module_&);
void bind_graph_statistics(py::module_&);
void bind_laplacian(py::module_&);
void bind_betti(py::module_&);
void bind_persistence(py::module_&);
void bind_divergence(py::module_&);
void bind_entropy(py::module_&);
void bind_sinks(py::module_&);
void bind_span_attention(py::module_&);
void bind_pattern_share(py::module_&);
void bind_lookback(py::module_&);
void bind_prompt_divergence(py::module_&);
void bind_toeplitz(py::module_&);
void bind_locality(py::module_&);
void bind_power_spectrum(py::module_&);
void bind_uncertainty(py::module_&);
void bind_wavelet(py::module_&);
void bind_marchenko_pastur(py::module_&);
void bind_participation_ratio(py::module_&);
void bind_singular_values(py::module_&);
void bind_alignment(py::module_&);
void bind_reference_influence(py::module_&);
void bind_delta_statistics(py::module_&);
void bind_lazy_attention(py::module_&);
}  // namespace attnscope

// Not declared free of the GIL (py::mod_gil_not_used), so a free-threaded interpreter keeps it on:
// no such interpreter has run these tests. Nothing here asks for it, as loops over a batch let go
// of the GIL anyway.
PYBIND11_MODULE(_core, module) {
  module.doc() =
      "The compiled core of attnscope: tensors in, tensors out. Use the package's functions.";
  attnscope::find_exchange();
  module.def("interfaces",
             [] { return py::make_tuple(attnscope::exchange_name(), attnscope::threads_name()); });
  module.attr("large_result") = attnscope::kLargeResult;
  for (const auto bind : {attnscope::bind_validity,
                          attnscope::bind_cloud_distances,
                          attnscope::bind_fragmentation,
                          attnscope::bind_local_dimension,
                          attnscope::bind_fiedler,
                          attnscope::bind_graph_statistics,
                          attnscope::bind_laplacian,
                          attnscope::bind_betti,
                          attnscope::bind_persistence,
                          attnscope::bind_divergence,
                          attnscope::bind_entropy,
                          attnscope::bind_sinks,
                          attnscope::bind_span_attention,
                          attnscope::bind_pattern_share,
                          attnscope::bind_lookback,
                          attnscope::bind_prompt_divergence,
                          attnscope::bind_toeplitz,
                          attnscope::bind_locality,
                          attnscope::bind_power_spectrum,
                          attnscope::bind_uncertainty,
                          attnscope::bind_wavelet,
                          attnscope::bind_marchenko_pastur,
                          attnscope::bind_participation_ratio,
                          attnscope::bind_singular_values,
                          attnscope::bind_alignment,
                          attnscope::bind_reference_influence,
                          attnscope::bind_delta_statistics,
                          attnscope::bind_lazy_attention}) {
    bind(module);
  }
}
