// SPDX-License-Identifier: MIT
#include "linalg/dqds.h"

#include <algorithm>
#include <cmath>

#include "linalg/dqds_sweeps.h"
#include "linalg/eigenvalues.h"
#include "simd/lanes.h"

namespace attnscope {

using dqds::choose;
using dqds::kWidth;
using dqds::Sweeps;

namespace {

// A squared off-diagonal entry this small moves σ by less than 1e-7, in units of the largest row
// sum.
constexpr double kFastNegligible = 1e-15;
// How far below 0, in units of the norm, float32 arithmetic may put an eigenvalue that is not.
constexpr double kFloatRounding = 1e-6;

// The singular values σ of one lane's matrix: a symmetric matrix with its entries, d1, e1, d2, ...,
// beside a diagonal of zeros has the eigenvalues ±σ (Golub and Kahan 1965).
void solve_alone(const double* diagonal, const double* superdiagonal, Index n, double* out) {
  Eigen::VectorXd beside(2 * n - 1);
  for (Index i = 0; i < n; ++i) {
    beside[2 * i] = diagonal[i * kWidth];
    if (i + 1 < n) beside[2 * i + 1] = superdiagonal[i * kWidth];
  }
  const Eigen::VectorXd values = symmetric_eigenvalues(Eigen::VectorXd::Zero(2 * n), beside);
  for (Index k = 0; k < n; ++k) out[k] = std::max(values[2 * n - 1 - k], 0.0);
}

}  // namespace

Index dqds_width() { return kWidth; }

void bidiagonal_singular_values(const double* diagonal, const double* superdiagonal, Index n,
                                std::span<double* const> out, DqdsWorkspace& workspace,
                                Index most_sweeps, Precision precision) {
  workspace.values.resize(n * kWidth);
  double* values = workspace.values.data();
  alignas(64) double scale[kWidth];
  const double negligible = precision == Precision::exact ? dqds::kNegligible : kFastNegligible;
  Sweeps sweeps(n, workspace.arrays.resize(Sweeps::kArrays * Sweeps::spacing(n)), values,
                negligible);
  sweeps.run(diagonal, superdiagonal, scale, most_sweeps > 0 ? most_sweeps : 60 * n);
  for (std::size_t lane = 0; lane < out.size(); ++lane) {
    double* target = out[lane];
    if (target == nullptr) continue;
    if (!sweeps.done(static_cast<Index>(lane))) {
      solve_alone(diagonal + lane, superdiagonal + lane, n, target);
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
                             double* values, DqdsWorkspace& workspace, Precision precision) {
  double* roots = workspace.factors.resize(2 * n * kWidth);
  double* above = roots + n * kWidth;
  alignas(64) double shifts[kWidth];
  const auto lanes = [](const double* from) { return *reinterpret_cast<const Lanes*>(from); };
  for (Index first = 0; first < kWidth; first += kPackWidth) {
    if (first >= count) {
      for (Index i = 0; i < 2 * n; ++i)
        *reinterpret_cast<Lanes*>(roots + i * kWidth + first) = Lanes{};
      continue;
    }
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
    const double share =
        precision == Precision::exact ? 1e-16 * static_cast<double>(n) : kFloatRounding;
    const Lanes rounding = share * norm;
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
  bidiagonal_singular_values(roots, above, n, {out, static_cast<std::size_t>(count)}, workspace, 0,
                             precision);
  for (Index lane = 0; lane < count; ++lane) {
    for (Index i = 0; i < n; ++i) out[lane][i] = out[lane][i] * out[lane][i] - shifts[lane];
  }
}

}  // namespace attnscope
