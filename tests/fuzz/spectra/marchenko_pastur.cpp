// SPDX-License-Identifier: MIT
#include "kernels/spectra/marchenko_pastur.h"

#include "inputs.h"

namespace attnscope::fuzz {

inline bool same(const MarchenkoPastur& a, const MarchenkoPastur& b) {
  return same_bits(a.ks, b.ks) && same_bits(a.wasserstein, b.wasserstein) &&
         a.outliers == b.outliers && same_bits(a.outlier_energy, b.outlier_energy) &&
         same_bits(a.largest, b.largest) && same_bits(a.edge, b.edge) &&
         same_bits(a.p_value, b.p_value);
}

template <class Scalar>
void deviation(Bytes& bytes) {
  static const TriangularTable table;
  const Index n = read_size(bytes, 32, 72, 290);
  const Index count = bytes.between(1, std::min<Index>(3, singular_values_width()));
  MarchenkoPasturOptions options;
  const SpectralNull nulls[] = {SpectralNull::automatic, SpectralNull::full, SpectralNull::causal,
                                SpectralNull::permutation};
  options.null = nulls[bytes.byte() % 4];
  options.draws = bytes.between(1, 4);
  options.seed = bytes.bits<std::uint64_t>();
  options.all_fields = bytes.flag();
  if (bytes.flag()) options.triangular = &table;
  const Layer<Scalar> layer(bytes, n, count);
  if (!layer.finite) return;
  static MarchenkoPasturWorkspace reused;
  MarchenkoPasturWorkspace fresh;
  std::vector<MarchenkoPastur> results(static_cast<std::size_t>(count));
  marchenko_pastur(std::span<const MatrixView<Scalar>>(layer.views),
                   std::span<const Support>(layer.supports), options,
                   std::span<MarchenkoPastur>(results), fresh);
  for (Index k = 0; k < count; ++k) {
    MarchenkoPastur alone;
    marchenko_pastur(std::span<const MatrixView<Scalar>>(&layer.views[k], 1),
                     std::span<const Support>(&layer.supports[k], 1), options,
                     std::span<MarchenkoPastur>(&alone, 1), reused);
    const MarchenkoPastur& found = results[k];
    LAW(same(alone, found), "alone %.17g, in a pack %.17g, n = %ld", alone.ks, found.ks, long(n));
    if (!layer.maps[k]->tame()) continue;
    if (std::isnan(found.ks)) {
      LAW(found.outliers == -1 && std::isnan(found.edge), "undefined, but edge is %g", found.edge);
      continue;
    }
    LAW(n >= kFewestTokens, "%ld tokens have a deviation", long(n));
    LAW(found.ks >= 0.0 && found.ks <= 1.0, "ks is %g", found.ks);
    LAW(found.edge > 0.0, "edge %g", found.edge);
    LAW(std::isnan(found.p_value) || (found.p_value > 0.0 && found.p_value <= 1.0), "p is %g",
        found.p_value);
    if (!options.all_fields) {
      LAW(found.outliers == -1 && std::isnan(found.wasserstein) && std::isnan(found.largest),
          "ks alone was asked for, W1 is %g", found.wasserstein);
      continue;
    }
    LAW(found.outliers >= 0 && found.outliers <= n, "%ld outliers of %ld", long(found.outliers),
        long(n));
    LAW(found.outlier_energy >= 0.0 && found.outlier_energy <= 1.0 + 1e-12, "outlier energy %g",
        found.outlier_energy);
    LAW((found.outliers == 0) == (found.outlier_energy == 0.0), "%ld outliers hold %g",
        long(found.outliers), found.outlier_energy);
    LAW(found.largest >= 0.0, "largest %g", found.largest);
    LAW(found.wasserstein >= 0.0, "W1 is %g", found.wasserstein);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::deviation)
