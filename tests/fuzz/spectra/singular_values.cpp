// SPDX-License-Identifier: MIT
#include "kernels/spectra/singular_values.h"

#include <Eigen/SVD>

#include "reader.h"

namespace attnscope::fuzz {

template <class Scalar>
void singular(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 150);
  const Index count = bytes.between(1, singular_values_width());
  std::vector<std::unique_ptr<Map<Scalar>>> maps;
  std::vector<MatrixView<Scalar>> views;
  for (Index k = 0; k < count; ++k) {
    auto map = std::make_unique<Map<Scalar>>(bytes, n);
    if (!map->finite()) continue;
    views.push_back(map->view());
    maps.push_back(std::move(map));
  }
  if (maps.empty()) return;
  std::vector<Output<double>> values;
  std::vector<double*> out;
  for (std::size_t k = 0; k < maps.size(); ++k) out.push_back(values.emplace_back(n).data());
  static SingularValuesWorkspace reused;
  SingularValuesWorkspace fresh;
  singular_values(std::span<const MatrixView<Scalar>>(views), std::span<double* const>(out), fresh);
  for (std::size_t k = 0; k < maps.size(); ++k) {
    Output<double> alone(n);
    double* const place[] = {alone.data()};
    singular_values(std::span<const MatrixView<Scalar>>(&views[k], 1),
                    std::span<double* const>(place), reused);
    LAW(alone.same_bits(values[k]), "alone %.17g, in a pack %.17g, n = %ld", alone[0], values[k][0],
        long(n));
    if (!maps[k]->tame()) continue;
    double energy = 0.0;
    for (Index i = 0; i < n; ++i) {
      LAW(alone[i] >= 0.0, "a singular value of %g", alone[i]);
      LAW(i == 0 || alone[i] <= alone[i - 1], "singular values do not descend at %ld", long(i));
      energy += alone[i] * alone[i];
    }
    const double norm = maps[k]->exact().squaredNorm();
    LAW(near(energy, norm, 4e-12 * norm), "squares sum to %.17g, the entries' to %.17g", energy,
        norm);
    if (n <= 24) {
      const Eigen::VectorXd expected = maps[k]->exact().jacobiSvd().singularValues();
      for (Index i = 0; i < n; ++i) {
        LAW(near(alone[i], expected(i), 1e-12 * expected(0)),
            "value %ld is %.17g, Jacobi %.17g of %.17g", long(i), alone[i], expected(i),
            expected(0));
      }
    }
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::singular)
