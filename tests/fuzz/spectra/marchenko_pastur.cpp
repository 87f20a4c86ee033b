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
  options.wasserstein = bytes.flag();
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
    if (found.outliers < 0) {
      LAW(std::isnan(found.ks) && std::isnan(found.edge), "undefined, but ks is %g", found.ks);
      continue;
    }
    LAW(n >= kFewestTokens, "%ld tokens have a deviation", long(n));
    LAW(found.ks >= 0.0 && found.ks <= 1.0, "ks is %g", found.ks);
    LAW(found.outliers <= n, "%ld outliers of %ld", long(found.outliers), long(n));
    LAW(found.outlier_energy >= 0.0 && found.outlier_energy <= 1.0 + 1e-12, "outlier energy %g",
        found.outlier_energy);
    LAW((found.outliers == 0) == (found.outlier_energy == 0.0), "%ld outliers hold %g",
        long(found.outliers), found.outlier_energy);
    LAW(found.largest >= 0.0 && found.edge > 0.0, "largest %g, edge %g", found.largest, found.edge);
    LAW(options.wasserstein ? found.wasserstein >= 0.0 : std::isnan(found.wasserstein), "W1 is %g",
        found.wasserstein);
    LAW(std::isnan(found.p_value) || (found.p_value > 0.0 && found.p_value <= 1.0), "p is %g",
        found.p_value);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::deviation)
