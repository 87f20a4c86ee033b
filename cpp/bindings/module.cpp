// SPDX-License-Identifier: MIT
#include <pybind11/pybind11.h>

#include <cstdint>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "bindings/exchange.h"
#include "bindings/tensors.h"
#include "bindings/threads.h"
#include "simd/memory.h"

namespace py = pybind11;

namespace attnscope {
void bind_validity(py::module_&);
void bind_cloud_distances(py::module_&);
void bind_fragmentation(py::module_&);
void bind_local_dimension(py::module_&);
void bind_fiedler(py::module_&);
void bind_graph_statistics(py::module_&);
void bind_laplacian(py::module_&);
void bind_barcodes(py::module_&);
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
namespace {

#if defined(__linux__) && defined(MADV_HUGEPAGE)
// Asks Linux for pages of 2 MiB: it hands out a page at its first use, and the usual ones of 4096
// bytes take a twentieth of the time of a product of matrices of 2,048 columns. A system that has
// none leaves the memory as it is.
void ask_for_huge_pages(void* memory, attnscope::Index bytes) {
  constexpr std::uintptr_t kHugePage = std::uintptr_t{1} << 21;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const std::uintptr_t end = (begin + static_cast<std::uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
}
#endif

}  // namespace

PYBIND11_MODULE(_core, module) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  attnscope::prepare_large_scratch = ask_for_huge_pages;
#endif
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
                          attnscope::bind_barcodes,
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
