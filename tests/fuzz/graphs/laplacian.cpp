// SPDX-License-Identifier: MIT
#include "kernels/graphs/laplacian.h"

#include "inputs.h"
#include "oracles.h"

namespace attnscope::fuzz {

template <class Scalar>
void laplacian(Bytes& bytes) {
  const Index n = read_size(bytes, 32, 80, 290);
  const Map<Scalar> map(bytes, n);
  const GraphOptions options = read_options(bytes);
  const Index k = bytes.between(1, n);
  if (!map.finite()) return;
  static LaplacianWorkspace reused;
  LaplacianWorkspace fresh;
  Output<double> all(n);
  Output<double> again(n);
  Output<double> some(k);
  laplacian_eigenvalues(map.view(), options, n, all.data(), fresh);
  laplacian_eigenvalues(map.view(), options, n, again.data(), reused);
  laplacian_eigenvalues(map.view(), options, k, some.data(), reused);
  LAW(all.same_bits(again), "scratch changes the eigenvalues");
  const MatrixView<Scalar> view = map.view();
  Output<double> packed(n);
  Output<double> repacked(n);
  double* out[] = {packed.data(), repacked.data()};
  laplacian_spectra(std::span<const MatrixView<Scalar>>(&view, 1), options, n,
                    std::span<double* const>(out, 1), fresh);
  laplacian_spectra(std::span<const MatrixView<Scalar>>(&view, 1), options, n,
                    std::span<double* const>(out + 1, 1), reused);
  LAW(packed.same_bits(repacked), "scratch changes the spectrum");
  const Eigen::MatrixXd weights = weights_of(map, options);
  const bool graph = (weights.array() >= 0.0).all();
  if (!map.tame() && !options.threshold) return;
  for (Index i = 0; i < k; ++i)
    LAW(same_bits(all[i], some[i]), "of %ld only: %g, of all: %g", long(k), some[i], all[i]);
  if (!graph) return;
  const double largest = options.normalized ? 1.0 : weights.rowwise().sum().maxCoeff();
  const double slack = 1e-14 * double(n) * largest;
  const Index components = components_of(weights);
  double trace = 0.0;
  for (Index i = 0; i < n; ++i) {
    LAW(std::isfinite(all[i]), "eigenvalue %ld of %ld is %g", long(i), long(n), all[i]);
    LAW(i == 0 || all[i] >= all[i - 1], "eigenvalues do not ascend at %ld", long(i));
    LAW(all[i] >= 0.0 && all[i] <= 2.0 * largest + slack, "eigenvalue %g, largest degree %g",
        all[i], largest);
    LAW(i >= components || all[i] == 0.0, "%ld components, eigenvalue %ld is %g", long(components),
        long(i), all[i]);
    LAW(near(packed[i], all[i], slack), "in a pack %.17g, dense %.17g", packed[i], all[i]);
    LAW(i >= components || packed[i] == 0.0, "%ld components, in a pack eigenvalue %ld is %g",
        long(components), long(i), packed[i]);
    trace += all[i];
  }
  LAW(near(trace, laplacian_of(weights, options.normalized).trace(), slack * double(n)),
      "trace %.17g", trace);
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::laplacian)
