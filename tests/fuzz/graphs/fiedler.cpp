// SPDX-License-Identifier: MIT
#include "kernels/graphs/fiedler.h"

#include "inputs.h"
#include "oracles.h"

namespace attnscope::fuzz {

template <class Scalar>
void fiedler(Bytes& bytes) {
  const Index n = read_size(bytes, 48, 120);
  const Index count = bytes.between(1, std::min<Index>(3, fiedler_pack_width(n)));
  const GraphOptions options = read_options(bytes);
  const Precision precision = bytes.flag() ? Precision::exact : Precision::fast;
  std::vector<std::unique_ptr<Map<Scalar>>> maps;
  std::vector<MatrixView<Scalar>> views;
  for (Index k = 0; k < count; ++k) {
    auto map = std::make_unique<Map<Scalar>>(bytes, n);
    if (!map->finite()) continue;
    views.push_back(map->view());
    maps.push_back(std::move(map));
  }
  if (maps.empty()) return;
  static FiedlerWorkspace reused;
  FiedlerWorkspace fresh;
  Output<double> out(static_cast<Index>(maps.size()));
  fiedler_values(std::span<const MatrixView<Scalar>>(views), options, precision, out.data(), fresh);
  for (std::size_t k = 0; k < maps.size(); ++k) {
    const Map<Scalar>& map = *maps[k];
    const double value = out[static_cast<Index>(k)];
    double alone = 0.0;
    fiedler_values(std::span<const MatrixView<Scalar>>(&views[k], 1), options, precision, &alone,
                   reused);
    LAW(same_bits(alone, value), "alone %.17g, in a pack %.17g, n = %ld", alone, value, long(n));
    Output<double> vector(n);
    fiedler_vector(map.view(), options, vector.data(), reused);
    LAW(vector.all_written(), "the vector has a hole");
    if (!map.tame() && !options.threshold) continue;
    if (n == 1) {
      LAW(value == 0.0 && std::isnan(vector[0]), "one token has the value %g", value);
      continue;
    }
    const Eigen::MatrixXd weights = weights_of(map, options);
    if (!(weights.array() >= 0.0).all()) continue;
    const double largest = weights.rowwise().sum().maxCoeff();
    const double smallest = weights.rowwise().sum().minCoeff();
    const double scale = options.normalized ? 1.0 : largest;
    double lowest[2];  // n > 1 here
    laplacian_eigenvalues(map.view(), options, 2, lowest, fresh.laplacian);
    const double direct = lowest[1];
    const double promised = precision == Precision::exact ? 1e-9 : 1e-6;
    const double slack = promised * std::abs(direct) + 1e-14 * double(n) * scale;
    LAW(near(value, direct, slack), "%.17g, all eigenvalues %.17g, n = %ld", value, direct,
        long(n));
    const double bound = double(n) / double(n - 1) * (options.normalized ? 1.0 : smallest);
    LAW(value >= 0.0 && value <= bound + slack, "%.17g, bound %.17g", value, bound);
    LAW((components_of(weights) > 1) == (value == 0.0) || value < slack, "%g, %ld components",
        value, long(components_of(weights)));

    const Eigen::Map<const Eigen::VectorXd> v(vector.data(), n);
    LAW(near(v.norm(), 1.0, 1e-12), "a vector of norm %.17g", v.norm());
    // Which of two components is larger is undecided within rounding.
    const double peak = v.cwiseAbs().maxCoeff();
    LAW(v.maxCoeff() >= peak * (1.0 - 1e-8), "the largest component is %g", -peak);
    const Eigen::VectorXd residual = laplacian_of(weights, options.normalized) * v - direct * v;
    LAW(residual.norm() <= 1e-12 * double(n) * scale, "a residual of %g, scale %g", residual.norm(),
        scale);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::fiedler)
