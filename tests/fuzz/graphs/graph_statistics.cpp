// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include <vector>

#include "kernels/graphs/laplacian.h"
#include "oracles.h"

namespace attnscope::fuzz {

using G = GraphStatistics;
constexpr double G::* kNumbers[] = {
    &G::fiedler_value,  &G::laplacian_gap,           &G::density,         &G::hub_share,
    &G::gini,           &G::centralization,          &G::degree_variance, &G::star_likeness,
    &G::in_degree_gini, &G::in_degree_centralization};
constexpr double kUnwritten = -7.25;

std::vector<G> unwritten(Index count) {
  G one;
  for (const auto number : kNumbers) one.*number = kUnwritten;
  return std::vector<G>(static_cast<std::size_t>(count), one);
}

template <class Scalar>
void statistics(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 140, 290);
  const Map<Scalar> map(bytes, n);
  const Index count = bytes.between(1, 9);
  std::vector<double> thresholds;
  for (Index t = 0; t < count; ++t) {
    // Often an entry itself, where >= and > differ.
    const double entry = map(bytes.between(0, n - 1), bytes.between(0, n - 1));
    thresholds.push_back(entry > 0.0 && entry < 1.0 && bytes.flag() ? entry
                                                                    : 1e-6 + 0.999 * bytes.unit());
  }
  if (!map.finite()) return;
  static GraphStatisticsWorkspace reused;
  GraphStatisticsWorkspace fresh;
  std::vector<G> out = unwritten(count), again = out;
  graph_statistics(map.view(), thresholds.data(), count, out.data(), fresh);
  finish_graph_statistics(fresh);
  graph_statistics(map.view(), thresholds.data(), count, again.data(), reused);
  finish_graph_statistics(reused);
  for (std::size_t t = 0; t < out.size(); ++t) {
    for (const auto number : kNumbers) {
      LAW(same_bits(out[t].*number, again[t].*number), "scratch changes the statistics");
      LAW(out[t].*number != kUnwritten, "a hole");
    }
    LAW(out[t].components == again[t].components, "scratch changes the components");
    LAW(out[t].strong_components == again[t].strong_components,
        "scratch changes the strong components");
    LAW(out[t].strong_components >= out[t].components && out[t].strong_components <= n,
        "%ld strong components of %ld", long(out[t].strong_components), long(out[t].components));
  }
  static LaplacianWorkspace dense;
  for (Index t = 0; t < count; ++t) {
    GraphOptions options;
    options.threshold = thresholds[t];
    const Eigen::MatrixXd weights = weights_of(map, options);
    const Index components = components_of(weights);
    LAW(out[t].components == components, "%ld components, expected %ld", long(out[t].components),
        long(components));
    LAW((out[t].fiedler_value == 0.0) == (components > 1 || n == 1),
        "fiedler value %g of %ld components", out[t].fiedler_value, long(components));
    const double bound =
        n > 1 ? double(n) / double(n - 1) * weights.rowwise().sum().minCoeff() : 0.0;
    LAW(out[t].fiedler_value >= 0.0 && out[t].fiedler_value <= bound * (1.0 + 1e-12),
        "fiedler value %g, bound %g", out[t].fiedler_value, bound);
    LAW((n < 3) == std::isnan(out[t].laplacian_gap), "gap %g, n = %ld", out[t].laplacian_gap,
        long(n));
    LAW(!(out[t].laplacian_gap < 0.0), "gap %g", out[t].laplacian_gap);
    if (n >= 3 && (t == 0 || n <= 64)) {
      double smallest[3];
      laplacian_eigenvalues(map.view(), options, 3, smallest, dense);
      const double slack = 1e-9 * smallest[2] + 1e-14 * double(n) * double(n);
      LAW(near(out[t].fiedler_value, smallest[1], slack), "fiedler value %.17g, dense %.17g",
          out[t].fiedler_value, smallest[1]);
      LAW(near(out[t].laplacian_gap, smallest[2] - smallest[1], slack), "gap %.17g, dense %.17g",
          out[t].laplacian_gap, smallest[2] - smallest[1]);
    }
    const double pairs = double(n) * double(n - 1) / 2.0;
    const double density = weights.sum() / 2.0 / pairs;
    LAW(n < 2 ? std::isnan(out[t].density) : near(out[t].density, density, 1e-15),
        "density %.17g, expected %.17g", out[t].density, density);
    LAW(out[t].effective == (n >= 2 && out[t].density >= 0.05 && out[t].density <= 0.95),
        "effective at %g", out[t].density);
    for (const double share :
         {out[t].hub_share, out[t].gini, out[t].centralization, out[t].star_likeness,
          out[t].in_degree_gini, out[t].in_degree_centralization}) {
      LAW(!(share < 0.0) && !(share > 1.0 + 1e-15), "a share of %.17g, n = %ld", share, long(n));
    }
    if (n >= 2) {
      LAW(out[t].hub_share == weights.rowwise().sum().maxCoeff() / double(n - 1), "hub share %g",
          out[t].hub_share);
    }
    const Eigen::ArrayXd degree = weights.rowwise().sum();
    LAW(near(out[t].degree_variance, (degree - degree.mean()).square().mean(), 1e-10 * double(n)),
        "variance %.17g", out[t].degree_variance);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::statistics)
