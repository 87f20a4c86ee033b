// SPDX-License-Identifier: MIT
#include "kernels/graphs/graph_statistics.h"

#include <utility>

#include "kernels/graphs/laplacian.h"
#include "oracles.h"

namespace attnscope::fuzz {

struct Statistics {
  explicit Statistics(Index count)
      : numbers(10 * count), components(count), effective(count), size(count) {}
  GraphStatisticsOut out() {
    double* at = numbers.data();
    const auto next = [&] { return std::exchange(at, at + size); };
    GraphStatisticsOut out{};
    out.components = components.data();
    out.effective = effective.data();
    for (double** field : {&out.fiedler_value, &out.laplacian_gap, &out.density, &out.hub_share,
                           &out.gini, &out.centralization, &out.degree_variance, &out.star_likeness,
                           &out.in_degree_gini, &out.in_degree_centralization}) {
      *field = next();
    }
    return out;
  }
  Output<double> numbers;
  Output<std::int64_t> components;
  Output<bool> effective;
  Index size;
};

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
  Statistics found(count);
  Statistics again(count);
  const GraphStatisticsOut out = found.out();
  graph_statistics(map.view(), thresholds.data(), count, out, fresh);
  finish_graph_statistics(fresh);
  graph_statistics(map.view(), thresholds.data(), count, again.out(), reused);
  finish_graph_statistics(reused);
  LAW(found.numbers.same_bits(again.numbers) && found.components.same_bits(again.components),
      "scratch changes the statistics");
  LAW(found.numbers.all_written() && found.components.all_written() &&
          found.effective.all_written(),
      "a hole");
  static LaplacianWorkspace dense;
  for (Index t = 0; t < count; ++t) {
    GraphOptions options;
    options.threshold = thresholds[t];
    const Eigen::MatrixXd weights = weights_of(map, options);
    const Index components = components_of(weights);
    LAW(out.components[t] == components, "%ld components, expected %ld", long(out.components[t]),
        long(components));
    LAW((out.fiedler_value[t] == 0.0) == (components > 1 || n == 1),
        "fiedler value %g of %ld components", out.fiedler_value[t], long(components));
    const double bound =
        n > 1 ? double(n) / double(n - 1) * weights.rowwise().sum().minCoeff() : 0.0;
    LAW(out.fiedler_value[t] >= 0.0 && out.fiedler_value[t] <= bound * (1.0 + 1e-12),
        "fiedler value %g, bound %g", out.fiedler_value[t], bound);
    LAW((n < 3) == std::isnan(out.laplacian_gap[t]), "gap %g, n = %ld", out.laplacian_gap[t],
        long(n));
    LAW(!(out.laplacian_gap[t] < 0.0), "gap %g", out.laplacian_gap[t]);
    if (n >= 3 && (t == 0 || n <= 64)) {
      double smallest[3];
      laplacian_eigenvalues(map.view(), options, 3, smallest, dense);
      const double slack = 1e-9 * smallest[2] + 1e-14 * double(n) * double(n);
      LAW(near(out.fiedler_value[t], smallest[1], slack), "fiedler value %.17g, dense %.17g",
          out.fiedler_value[t], smallest[1]);
      LAW(near(out.laplacian_gap[t], smallest[2] - smallest[1], slack), "gap %.17g, dense %.17g",
          out.laplacian_gap[t], smallest[2] - smallest[1]);
    }
    const double pairs = double(n) * double(n - 1) / 2.0;
    const double density = weights.sum() / 2.0 / pairs;
    LAW(n < 2 ? std::isnan(out.density[t]) : near(out.density[t], density, 1e-15),
        "density %.17g, expected %.17g", out.density[t], density);
    LAW(out.effective[t] == (n >= 2 && out.density[t] >= 0.05 && out.density[t] <= 0.95),
        "effective at %g", out.density[t]);
    for (const double share :
         {out.hub_share[t], out.gini[t], out.centralization[t], out.star_likeness[t],
          out.in_degree_gini[t], out.in_degree_centralization[t]}) {
      LAW(!(share < 0.0) && !(share > 1.0 + 1e-15), "a share of %.17g, n = %ld", share, long(n));
    }
    if (n >= 2) {
      LAW(out.hub_share[t] == weights.rowwise().sum().maxCoeff() / double(n - 1), "hub share %g",
          out.hub_share[t]);
    }
    const Eigen::ArrayXd degree = weights.rowwise().sum();
    LAW(near(out.degree_variance[t], (degree - degree.mean()).square().mean(), 1e-10 * double(n)),
        "variance %.17g", out.degree_variance[t]);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::statistics)
