// SPDX-License-Identifier: MIT
#include "kernels/spectra/marchenko_pastur.h"

#include <memory>

#include "bindings/batched.h"

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
// that are not finite.
py::tuple marchenko_pastur_of(const py::object& attention, const py::object& lengths,
                              const py::object& support, const std::string& null, Index draws,
                              std::uint64_t seed, bool wasserstein_too,
                              const TriangularTable& triangular) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const MarchenkoPasturOptions options{null_from(null), draws, seed, wasserstein_too, &triangular};
  const Result<double> ks = make_result(batch.sizes, {}, kNaN);
  const Result<double> wasserstein = make_result(batch.sizes, {}, kNaN);
  const Result<std::int64_t> outliers = make_result(batch.sizes, {}, std::int64_t{-1});
  const Result<double> outlier_energy = make_result(batch.sizes, {}, kNaN);
  const Result<double> largest = make_result(batch.sizes, {}, kNaN);
  const Result<double> edge = make_result(batch.sizes, {}, kNaN);
  const Result<double> p_value = make_result(batch.sizes, {}, kNaN);
  std::atomic<Index> undefined{0};
  const Index non_finite = per_pack<MarchenkoPasturWorkspace>(
      batch, singular_values_width(),
      [&]<class Views>(Views views, std::span<const Index> indices, auto& workspace) {
        std::vector<Support> own(indices.size());
        std::vector<MarchenkoPastur> results(indices.size());
        for (std::size_t k = 0; k < indices.size(); ++k) own[k] = supports.of(indices[k], views[k]);
        marchenko_pastur(views, std::span<const Support>(own), options,
                         std::span<MarchenkoPastur>(results), workspace);
        for (std::size_t k = 0; k < indices.size(); ++k) {
          const Index index = indices[k];
          const MarchenkoPastur& result = results[k];
          ks.data[index] = result.ks;
          wasserstein.data[index] = result.wasserstein;
          outliers.data[index] = result.outliers;
          outlier_energy.data[index] = result.outlier_energy;
          largest.data[index] = result.largest;
          edge.data[index] = result.edge;
          p_value.data[index] = result.p_value;
          if (result.outliers < 0) undefined.fetch_add(1, std::memory_order_relaxed);
        }
      });
  return py::make_tuple(ks.tensor, wasserstein.tensor, outliers.tensor, outlier_energy.tensor,
                        largest.tensor, edge.tensor, p_value.tensor, undefined.load(), non_finite);
}

}  // namespace

void bind_marchenko_pastur(py::module_& module) {
  const auto triangular = std::make_shared<const TriangularTable>();
  module.def(
      "marchenko_pastur",
      [triangular](const py::object& attention, const py::object& lengths,
                   const py::object& support, const std::string& null, Index draws,
                   std::uint64_t seed, bool wasserstein) {
        return marchenko_pastur_of(attention, lengths, support, null, draws, seed, wasserstein,
                                   *triangular);
      },
      py::arg("attention"), py::arg("lengths"), py::arg("support"), py::arg("null"),
      py::arg("draws"), py::arg("seed"), py::arg("wasserstein"));
}

}  // namespace attnscope
