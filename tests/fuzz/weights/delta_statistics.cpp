// SPDX-License-Identifier: MIT
#include "kernels/weights/delta_statistics.h"

#include "reader.h"

namespace attnscope::fuzz {

template <class Before, class After>
void sums_of(Bytes& bytes, const Map<Before>& before) {
  const Index n = before.size();
  const Map<After> after(bytes, n);
  using Wide = Difference<Before, After>;
  RowScratch fresh;
  static RowScratch reused;
  Output<Wide> delta(n * n);
  const DeltaSums sums = delta_sums(before.view(), after.view(), delta.data(), n, fresh);
  const DeltaSums again =
      delta_sums(before.view(), after.view(), static_cast<Wide*>(nullptr), n, reused);
  LAW(sums.finite == (before.finite() && after.finite()), "finite: %d", int(sums.finite));
  LAW(delta.all_written(), "an entry of the difference is not written");
  LAW(sums.finite == again.finite && sums.unchanged == again.unchanged, "scratch changes the sums");
  if (!sums.finite) return;
  LAW(same_bits(sums.energy, again.energy) && same_bits(sums.product, again.product),
      "scratch or the difference changes the sums");
  double unchanged = 0.0, largest = 0.0;
  for (Index i = 0; i < n; ++i) {
    for (Index j = 0; j < n; ++j) {
      const Wide d = static_cast<Wide>(after.view()(i, j)) - static_cast<Wide>(before.view()(i, j));
      LAW(delta[i * n + j] == d, "entry %ld, %ld", long(i), long(j));
      unchanged += d == 0 ? 1.0 : 0.0;
      largest = std::max(largest, std::abs(double(d)));
    }
  }
  LAW(sums.unchanged == unchanged, "%g unchanged, counted %g", sums.unchanged, unchanged);
  LAW(sums.largest == largest, "%g, found %g", sums.largest, largest);
  LAW(sums.energy >= 0.0 && sums.before_energy >= 0.0, "%g, %g", sums.energy, sums.before_energy);
  LAW(sums.before_steps >= 0.0 && sums.after_steps >= 0.0, "steps");
}

template <class Scalar>
void sums(Bytes& bytes) {
  const Map<Scalar> before(bytes, read_size(bytes, 12, 70));
  switch (bytes.byte() % 4) {
    case 0:
      return sums_of<Scalar, float>(bytes, before);
    case 1:
      return sums_of<Scalar, double>(bytes, before);
    case 2:
      return sums_of<Scalar, Eigen::half>(bytes, before);
    default:
      return sums_of<Scalar, Eigen::bfloat16>(bytes, before);
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::sums)
