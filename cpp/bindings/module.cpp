// SPDX-License-Identifier: MIT
#include <pybind11/pybind11.h>

#include "bindings/exchange.h"
#include "bindings/tensors.h"
#include "bindings/threads.h"

namespace py = pybind11;

// What is bound, a folder a line.
#define ATTNSCOPE_CONCEPTS(DO) \
  DO(validity)                                                     \
  DO(cloud_distances) DO(fragmentation) DO(local_dimension)        \
  DO(fiedler) DO(graph_statistics) DO(laplacian)                   \
  DO(betti) DO(persistence)                                        \
  DO(divergence) DO(entropy) DO(sinks) DO(span_attention)          \
  DO(toeplitz)                                                     \
  DO(locality) DO(power_spectrum) DO(uncertainty) DO(wavelet)      \
  DO(marchenko_pastur) DO(participation_ratio) DO(singular_values) \
  DO(alignment) DO(reference_influence)                            \
  DO(delta_statistics)

namespace attnscope {
#define ATTNSCOPE_DECLARE(name) void bind_##name(py::module_&);
ATTNSCOPE_CONCEPTS(ATTNSCOPE_DECLARE)
}  // namespace attnscope

// Not declared free of the GIL (py::mod_gil_not_used), so a free-threaded interpreter keeps it on: no such
// interpreter has run these tests. Nothing here asks for it, as loops over a batch let go of the GIL anyway.
PYBIND11_MODULE(_core, module) {
  module.doc() = "The compiled core of attnscope: tensors in, tensors out. Use the package's functions.";
  attnscope::find_exchange();
  module.def("interfaces",
             [] { return py::make_tuple(attnscope::exchange_name(), attnscope::threads_name()); });
  module.attr("large_result") = attnscope::kLargeResult;
#define ATTNSCOPE_BIND(name) attnscope::bind_##name(module);
  ATTNSCOPE_CONCEPTS(ATTNSCOPE_BIND)
}
