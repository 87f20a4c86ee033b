// SPDX-License-Identifier: MIT
#include "kernels/spectra/participation_ratio.h"

#include <stdexcept>

#include "reader.h"

namespace attnscope::fuzz {

template <class Scalar>
void ratio(Bytes& bytes) {
  const Index n = read_size(bytes, 40, 130);
  const Map<Scalar> map(bytes, n);
  if (!map.finite()) return;
  static ParticipationRatioWorkspace reused;
  ParticipationRatioWorkspace fresh;
  const double singular = participation_ratio_singular(map.view(), fresh);
  const double laplacian = participation_ratio_laplacian(map.view(), fresh);
  LAW(same_bits(singular, participation_ratio_singular(map.view(), reused)),
      "scratch changes the ratio");
  LAW(same_bits(laplacian, participation_ratio_laplacian(map.view(), reused)),
      "scratch changes the ratio");
  double eigen = 0.0;
  try {
    eigen = participation_ratio_eigen(map.view(), fresh);
    LAW(same_bits(eigen, participation_ratio_eigen(map.view(), reused)),
        "scratch changes the ratio");
  } catch (const std::runtime_error&) {
    LAW(!map.tame(), "the solver gives up on a tame matrix, n = %ld", long(n));
  }
  if (!map.tame()) return;
  const Eigen::MatrixXd& a = map.exact();
  const double slack = 1e-12 * double(n);
  if (a.squaredNorm() == 0.0) {
    LAW(std::isnan(singular) && std::isnan(eigen), "a matrix of zeros: %g, %g", singular, eigen);
    return;
  }
  LAW(singular >= 1.0 - slack && singular <= double(n) + slack, "%.17g of %ld", singular, long(n));
  const double energy = a.squaredNorm();
  const double expected = energy * energy / (a.transpose() * a).squaredNorm();
  LAW(near(singular, expected, slack * expected), "%.17g, expected %.17g", singular, expected);
  LAW(std::isnan(eigen) || (eigen >= 1.0 - slack && eigen <= double(n) + slack), "%.17g of %ld",
      eigen, long(n));
  if (map.lower()) {
    const double sum = a.diagonal().cwiseAbs().sum();
    const double own = sum * sum / a.diagonal().squaredNorm();
    LAW(near(eigen, own, slack * own), "a causal map: %.17g, its diagonal %.17g", eigen, own);
  }
  if (!map.negative() && !std::isnan(laplacian)) {
    LAW(laplacian >= 1.0 - slack && laplacian <= double(n - 1) + slack, "%.17g of %ld", laplacian,
        long(n));
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::ratio)
