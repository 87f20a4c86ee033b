// SPDX-License-Identifier: MIT
#include "kernels/spectra/marchenko_pastur.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

SpectralNull null_from(const std::string& name) {
  if (name == "auto") return SpectralNull::automatic;
  if (name == "full") return SpectralNull::full;
  if (name == "causal") return SpectralNull::causal;
  if (name == "permutation") return SpectralNull::permutation;
  throw py::value_error("null must be 'auto', 'full', 'causal' or 'permutation', got '" + name +
                        "'");
}

// The seven fields, the number of matrices that are too short or vary in no row, and the number
// that are not finite; with precision "fast" behind them how many were measured exactly. The table
// of the triangular law is made once.
struct Comparison {
  TriangularTable triangular;

  py::tuple operator()(Argument attention, Argument lengths, Argument support,
                       const std::string& null, Index draws, std::uint64_t seed, bool all_fields,
                       const std::string& precision) const {
    const Batch batch = make_rectangles(attention, lengths);
    const SupportBatch supports = make_support(batch, support);
    const Precision level = precision_from(precision);
    const MarchenkoPasturOptions options{null_from(null), draws,       seed,
                                         all_fields,      &triangular, level};
    using M = MarchenkoPastur;
    const Fields fields(batch.sizes, {}, M{}, &M::ks, &M::wasserstein, &M::outliers,
                        &M::outlier_energy, &M::largest, &M::edge, &M::p_value);
    std::atomic<Index> undefined{0};
    std::atomic<Index> measured_exactly{0};
    const Index non_finite = per_pack<MarchenkoPasturWorkspace>(
        batch, shared_pack_width(batch, singular_values_width(level)),
        [&]<class Views>(Views views, std::span<const Index> indices, auto& workspace) {
          std::vector<Support> supports_of_block(indices.size());
          std::vector<M> spectra(indices.size());
          for (std::size_t k = 0; k < supports_of_block.size(); ++k)
            supports_of_block[k] = supports.of(indices[k], views[k]);
          const Index again = marchenko_pastur(views, std::span<const Support>(supports_of_block),
                                               options, std::span<M>(spectra), workspace);
          measured_exactly.fetch_add(again, std::memory_order_relaxed);
          for (std::size_t k = 0; k < spectra.size(); ++k) {
            fields.set(indices[k], spectra[k]);
            if (std::isnan(spectra[k].ks)) undefined.fetch_add(1, std::memory_order_relaxed);
          }
        });
    return with_fallbacks(fields.tensors() + py::make_tuple(undefined.load(), non_finite),
                          level == Precision::fast, measured_exactly.load());
  }
};

// F(x) of the Marchenko–Pastur law of `aspect`, rows over columns in (0, 1]; with `causal` of the
// trapezoid of that aspect below 1; without an aspect of the triangular law.
std::vector<double> null_law_cdf(std::vector<double> x, std::optional<double> aspect, bool causal) {
  const NullLaw law = !aspect  ? NullLaw::triangular()
                      : causal ? NullLaw::trapezoid(*aspect)
                               : NullLaw::marchenko_pastur(*aspect);
  std::ranges::transform(x, x.begin(), [&](double value) { return law.cdf(value); });
  return x;
}

}  // namespace

void bind_marchenko_pastur(py::module_& module) {
  define(module, "null_law_cdf", null_law_cdf, "x", "aspect", "causal");
  define(module, "marchenko_pastur", Comparison{}, "attention", "lengths", "support", "null",
         "draws", "seed", "all_fields", precision_argument());
}

}  // namespace attnscope
