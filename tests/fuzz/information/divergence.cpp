// SPDX-License-Identifier: MIT
#include "kernels/information/divergence.h"

#include "inputs.h"

namespace attnscope::fuzz {

template <class Scalar>
void divergence(Bytes& bytes) {
  const Index heads = bytes.between(1, 4);
  const Index n = read_size(bytes, 24, 100);
  const Layer<Scalar> layer(bytes, n, heads);
  const Marked removed(bytes, n);
  const Index cut = bytes.between(0, n);
  if (!layer.finite) return;
  const std::span<const MatrixView<Scalar>> views(layer.views);
  const std::span<const Support> supports(layer.supports);
  static DivergenceWorkspace reused;
  DivergenceWorkspace fresh;

  Output<double> out(heads * n);
  Output<double> halves(heads * n);
  head_divergence(views, supports, 0, n, out.data(), n, fresh);
  head_divergence(views, supports, 0, cut, halves.data(), n, reused);
  head_divergence(views, supports, cut, n, halves.data(), n, reused);
  LAW(out.same_bits(halves), "blocks of rows or scratch change the divergence, n = %ld", long(n));
  for (Index h = 0; h < heads; ++h) {
    const Map<Scalar>& map = *layer.maps[h];
    for (Index i = 0; i < n; ++i) {
      const double kl = out[h * n + i];
      bool negative = false;
      bool huge = false;  // x log x of such an entry is no number
      for (Index j = 0; j < n; ++j) negative = negative || (layer.seen[h](i, j) && map(i, j) < 0.0);
      for (Index j = 0; j < n; ++j) huge = huge || map(i, j) > 1e304;
      if (huge) continue;
      if (negative) {
        LAW(std::isnan(kl), "a negative entry gives %g", kl);
      } else if (heads == 1) {
        LAW(kl == 0.0, "the divergence of one head from itself is %g", kl);
      } else if (layer.attention && layer.tame) {
        long double expected = 0.0;
        long double size = 0.0;
        for (Index j = 0; j < n; ++j) {
          if (!layer.seen[h](i, j) || map(i, j) == 0.0) continue;
          long double mean = 0.0;
          for (Index g = 0; g < heads; ++g) {
            if (layer.seen[g](i, j)) mean += (*layer.maps[g])(i, j);
          }
          mean /= static_cast<long double>(heads);
          const long double term =
              map(i, j) * (std::log(static_cast<long double>(map(i, j))) - std::log(mean));
          expected += term;
          size += std::abs(term) + map(i, j);
        }
        LAW(near(kl, double(expected), 1e-13 * double(size)),
            "head %ld row %ld: %.17g, expected %.17g", long(h), long(i), kl, double(expected));
      }
    }
  }

  Output<double> before(heads * n);
  Output<double> after(heads * n);
  Output<double> after_again(heads * n);
  Output<bool> excluded(heads * n);
  Output<double> rescaled(heads * n * n);
  sink_removal(views, supports, removed.all(), removed.stride(), 0, n,
               RemovalRows{before.data(), after.data(), excluded.data(), rescaled.data(), n, n},
               fresh);
  for (const auto& [begin, end] : {std::pair(cut, n), std::pair(Index{0}, cut)}) {
    sink_removal(views, supports, removed.all(), removed.stride(), begin, end,
                 RemovalRows{before.data(), after_again.data(), excluded.data(), nullptr, n, n},
                 reused);
  }
  LAW(after.same_bits(after_again),
      "blocks, scratch or keeping the maps change the removal, n = %ld", long(n));
  for (Index h = 0; h < heads; ++h) {
    for (Index i = 0; i < n; ++i) {
      double sum = 0.0;
      for (Index j = 0; j < n; ++j) {
        const double kept = rescaled[(h * n + i) * n + j];
        sum += kept;
        if (removed.all()[j * removed.stride()]) LAW(kept == 0.0, "a removed key keeps %g", kept);
      }
      if (excluded[h * n + i]) {
        LAW(before[h * n + i] == 0.0 && after[h * n + i] == 0.0 && sum == 0.0,
            "an excluded row has %g", sum);
      } else if (layer.attention && layer.tame) {
        LAW(near(sum, 1.0, 1e-12), "a rescaled row sums to %.17g", sum);
        LAW(after[h * n + i] >= -1e-12 && after[h * n + i] <= std::log(double(heads)) + 1e-12,
            "a divergence of %g among %ld heads", after[h * n + i], long(heads));
      }
    }
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::divergence)
