// SPDX-License-Identifier: MIT
#include "linalg/dqds.h"

#include <algorithm>
#include <cmath>

#include "linalg/dqds_sweeps.h"
#include "simd/lanes.h"

namespace attnscope {

using dqds::choose;
using dqds::kWidth;
using dqds::Sweeps;

Index dqds_width() { return kWidth; }

void bidiagonal_singular_values(const double* diagonal, const double* superdiagonal, Index n,
                                std::span<double* const> out, DqdsWorkspace& workspace,
                                Index most_sweeps) {
  workspace.values.resize(n * kWidth);
  double* values = workspace.values.data();
  alignas(64) double scale[kWidth];
  Sweeps sweeps(n, workspace.arrays.resize(Sweeps::kArrays * Sweeps::spacing(n)), values);
  sweeps.run(diagonal, superdiagonal, scale, most_sweeps > 0 ? most_sweeps : 60 * n);
  for (std::size_t lane = 0; lane < out.size(); ++lane) {
    double* target = out[lane];
    if (target == nullptr) continue;
    if (!sweeps.done(static_cast<Index>(lane))) {
      bidiagonal_singular_values_by_bisection(diagonal + lane, superdiagonal + lane, n, kWidth,
                                              target);
      continue;
    }
    // Values leave from the bottom of the matrix, so they are nearly sorted.
    for (Index i = 0; i < n; ++i) {
      const double value =
          std::sqrt(std::max(values[i * kWidth + static_cast<Index>(lane)], 0.0)) * scale[lane];
      Index place = i;
      for (; place > 0 && target[place - 1] < value; --place) target[place] = target[place - 1];
      target[place] = value;
    }
  }
}

void tridiagonal_eigenvalues(const double* diagonal, const double* beside, Index n, Index count,
                             double* values, DqdsWorkspace& workspace) {
  double* roots = workspace.factors.resize(2 * n * kWidth);
  double* above = roots + n * kWidth;
  alignas(64) double shifts[kWidth];
  const auto lanes = [](const double* from) { return *reinterpret_cast<const Lanes*>(from); };
  for (Index first = 0; first < kWidth; first += kPackWidth) {
    // T + shift = BᵀB. The shift is a rounding of T, or else what makes every row dominant.
    Lanes norm{};
    Lanes lowest{};
    Lanes before{};
    for (Index i = 0; i < n; ++i) {
      const Lanes after = i + 1 < n ? magnitude(lanes(beside + i * kWidth + first)) : Lanes{};
      const Lanes centre = lanes(diagonal + i * kWidth + first);
      norm = larger(norm, magnitude(centre) + before + after);
      lowest = smaller(lowest, centre - before - after);
      before = after;
    }
    const Lanes rounding = (1e-16 * static_cast<double>(n)) * norm;
    Lanes shift = rounding;
    for (int attempt = 0; attempt < 2; ++attempt) {
      LaneMask positive = norm >= 0.0;
      Lanes offset{};
      for (Index i = 0; i < n; ++i) {
        const Lanes q = lanes(diagonal + i * kWidth + first) + shift - offset;
        positive &= (q > 0.0) | (norm == 0.0);
        const Lanes root = square_root(larger(q, Lanes{}));
        const Lanes b = i + 1 < n ? lanes(beside + i * kWidth + first) : Lanes{};
        const Lanes e = b / choose(root > 0.0, root, broadcast(1.0));
        *reinterpret_cast<Lanes*>(roots + i * kWidth + first) = root;
        *reinterpret_cast<Lanes*>(above + i * kWidth + first) = e;
        offset = e * e;
      }
      if (!any(~positive)) break;
      shift = choose(positive, shift, rounding - lowest);
    }
    for (Index lane = 0; lane < kPackWidth; ++lane) shifts[first + lane] = shift[lane];
  }
  double* out[kWidth];
  for (Index lane = 0; lane < count; ++lane) out[lane] = values + lane * n;
  bidiagonal_singular_values(roots, above, n, {out, static_cast<std::size_t>(count)}, workspace);
  for (Index lane = 0; lane < count; ++lane) {
    for (Index i = 0; i < n; ++i) out[lane][i] = out[lane][i] * out[lane][i] - shifts[lane];
  }
}

void bidiagonal_singular_values_by_bisection(const double* diagonal, const double* superdiagonal,
                                             Index n, Index stride, double* out) {
  double scale = 0.0;
  for (Index i = 0; i < n; ++i) {
    scale = std::max(scale, std::abs(diagonal[i * stride]) +
                                (i + 1 < n ? std::abs(superdiagonal[i * stride]) : 0.0));
  }
  if (scale == 0.0) {
    std::fill(out, out + n, 0.0);
    return;
  }
  // Sturm count of BᵀB − x² from the squares of B, without forming the product.
  const auto count_below = [&](double x) {
    Index below = 0;
    double s = -x * x;
    for (Index i = 0; i < n; ++i) {
      const double a = diagonal[i * stride] / scale;
      double pivot = a * a + s;
      if (std::abs(pivot) < 1e-300) pivot = -1e-300;
      if (pivot < 0.0) ++below;
      if (i + 1 == n) break;
      const double b = superdiagonal[i * stride] / scale;
      s = b * b * (s / pivot) - x * x;
    }
    return below;
  };
  for (Index k = 0; k < n; ++k) {
    // out[k] has n − 1 − k values below it.
    double low = 0.0;
    double high = k > 0 ? out[k - 1] : 2.0;
    while (high - low > 1e-16 * (1.0 + high)) {
      const double middle = 0.5 * (low + high);
      if (middle <= low || middle >= high) break;
      (count_below(middle) > n - 1 - k ? high : low) = middle;
    }
    out[k] = high;
  }
  for (Index k = 0; k < n; ++k) out[k] *= scale;
}

}  // namespace attnscope
