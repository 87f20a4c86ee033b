// SPDX-License-Identifier: MIT
#include "graphs/preconditioned_fiedler.h"

#include <algorithm>
#include <cmath>

#include "linalg/panel_tridiagonal.h"
#include "linalg/refinement/davidson.h"
#include "linalg/refinement/float_preconditioner.h"

namespace attnscope {
namespace {

constexpr int kMostRounds = 8;
// A shift closer to λ2 than this share of its vector's mean diagonal entry drowns in the factor's
// rounding. A hub's large entry does not count where the vector has nothing: rounding is relative
// to the entries of a row and a column (Demmel 1989, on the scaled condition number of Cholesky's
// factor).
constexpr double kClosestShift = 2e-6;
// What Lanczos steps reach in float32, as a share of λ2.
constexpr double kFloatTolerance = 2e-7;
// Entries beyond these leave float32's range when they are multiplied.
constexpr double kSmallestEntry = 1e-9;
constexpr double kLargestEntry = 1e9;

float* floats(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<float*>(buffer.resize((size + 1) / 2));
}

// How many steps cost as much as a new factor and the first steps with it.
double steps_worth_a_factor(Index n) {
  return n < 192 ? 18.0 : n < 384 ? 22.0 : n < 768 ? 30.0 : 40.0;
}

// The float32 panels of L + lifts·liftsᵀ − σ.
void fill_factor(const LaplacianPanels& laplacian, const double* lifts, double sigma, float* out) {
  typedef float Half __attribute__((vector_size(kPackWidth * sizeof(float)), may_alias));
  constexpr Index kWidth = PanelShape<float>::kWidth;
  const Index n = laplacian.n;
  const Index count = panels_of<float>(n);
  for (Index s = 0; s < count; ++s) {
    const Index first = s * kWidth;
    const Index end = std::min(n, first + kWidth);
    float* row = out + panel_offset<float>(s);
    for (Index k = 0; k < end; ++k, row += kWidth) {
      const Lanes factor = broadcast(lifts[k]);
      for (Index c = 0; c < kWidth; c += kPackWidth) {
        // Below the diagonal nothing is read again.
        const Index panel = (first + c) / kPanel;
        Lanes entries{};
        if (first + c < n && k < (panel + 1) * kPanel) {
          const Index column = first + c - panel * kPanel;
          entries = *lanes_at(laplacian.panels + panel_offset(panel) + k * kPanel + column) +
                    factor * *lanes_at(lifts + first + c);
        }
        *reinterpret_cast<Half*>(row + c) = __builtin_convertvector(entries, Half);
      }
      std::fill(row + (end - first), row + kWidth, 0.0f);
    }
    std::fill(row, out + panel_offset<float>(s + 1), 0.0f);
  }
  for (Index i = 0; i < count * kWidth; ++i) {
    const double entry =
        i < n ? laplacian.panels[panel_entry(i, i)] + lifts[i] * lifts[i] - sigma : 1.0;
    out[panel_entry<float>(i, i)] = static_cast<float>(entry);
  }
}

// λ2 from the Ritz vector that the preconditioner has found, in float64.
std::optional<double> refined(const LaplacianPanels& laplacian, double sigma, double tolerance,
                              double rounding, FloatPreconditioner& preconditioner,
                              PreconditionedFiedlerWorkspace& workspace) {
  const Index n = laplacian.n;
  const Index count = panels_of(n);
  const Index padded = count * kPanel;
  double* basis = workspace.basis.resize((kMostDavidsonSteps + 2) * padded);
  double* images = workspace.images.resize(kMostDavidsonSteps * padded);
  std::copy(laplacian.null, laplacian.null + padded, basis);
  double* x = basis + padded;
  const float* ritz = preconditioner.ritz_vector();
  for (Index i = 0; i < padded; ++i) x[i] = i < n ? static_cast<double>(ritz[i]) : 0.0;
  remove_parts(basis, 1, padded, x);
  scale_vector(x, 1.0 / std::sqrt(inner_product(x, x, padded)), padded);
  preconditioner.prepare();
  const auto allowed = [=](double value) { return std::max(tolerance * value, rounding); };
  const DavidsonEnd end = davidson_steps(
      padded, sigma, basis, images,
      [&](const double* v, double* image) { panel_product(laplacian.panels, count, v, image); },
      [&](double* r, double value) {
        const double length = std::sqrt(inner_product(r, r, padded));
        if (!(length > 0.0)) return 0.0;
        float* z = preconditioner.behind();
        for (Index i = 0; i < preconditioner.padded(); ++i)
          z[i] = i < n ? static_cast<float>(r[i] / length) : 0.0f;
        preconditioner.solve(z);
        double product = 0.0;
        for (Index i = 0; i < n; ++i) product += r[i] * static_cast<double>(z[i]);
        const double bound = std::sqrt(std::max(0.0, product * length * (value - sigma)));
        if (bound <= allowed(value)) return bound;
        const float* t = preconditioner.correct(z, std::max(1e-3, 0.2 * allowed(value) / bound));
        for (Index i = 0; i < n; ++i) r[i] = static_cast<double>(t[i]);
        return bound;
      },
      allowed);
  return end.converged ? std::optional(end.value) : std::nullopt;
}

}  // namespace

std::optional<double> preconditioned_fiedler_value(const LaplacianPanels& laplacian,
                                                   double tolerance,
                                                   PreconditionedFiedlerWorkspace& workspace) {
  const Index n = laplacian.n;
  const Index count = panels_of<float>(n);
  const Index padded = count * PanelShape<float>::kWidth;
  const Index room = std::max(padded, panels_of(n) * kPanel);
  double* lifts = workspace.lifts.resize(room);
  double largest = 0.0, smallest = kLargestEntry;
  for (Index i = 0; i < room; ++i) {
    lifts[i] = i < n ? std::sqrt(laplacian.lift) * laplacian.null[i] : 0.0;
    if (i >= n) continue;
    const double entry = laplacian.panels[panel_entry(i, i)];
    largest = std::max(largest, entry);
    smallest = std::min(smallest, entry);
  }
  if (!(largest > kSmallestEntry && largest < kLargestEntry)) return std::nullopt;
  // λ2 is at most n/(n − 1) of the smallest entry (Fiedler 1973), and no vector's mean entry is
  // below the lift's.
  const double at_least = laplacian.lift / static_cast<double>(n);
  if (smallest <= kClosestShift * at_least) return std::nullopt;
  float* factor = floats(workspace.factor, panel_offset<float>(count));
  float* inverses = floats(workspace.inverses, panel_inverses<float>(n));
  float* basis = floats(workspace.krylov, (kMostLanczosSteps + 6) * padded);
  FloatPreconditioner preconditioner(n, factor, inverses, basis);
  float* start = preconditioner.vector(1);
  for (Index i = 0; i < padded; ++i) {
    basis[i] = i < n ? static_cast<float>(laplacian.null[i]) : 0.0f;
    start[i] = i < n ? static_cast<float>(start_entry(i)) : 0.0f;
  }
  remove_parts<float>(basis, 1, padded, start);
  scale_vector(start, 1.0 / std::sqrt(inner_product<float>(start, start, padded)), padded);
  const double rounding = 0x1p-53 * static_cast<double>(n) * largest;
  double sigma = 0.0, below = 0.0;
  for (int round = 0; round < kMostRounds; ++round) {
    fill_factor(laplacian, lifts, sigma, factor);
    if (!preconditioner.factorize()) {
      if (sigma == below) return std::nullopt;
      sigma = below + 0.25 * (sigma - below);
      continue;
    }
    below = sigma;
    const LanczosRound& found = preconditioner.grow(steps_worth_a_factor(n), [=](double theta) {
      return std::min(1e-3, kFloatTolerance * (1.0 + sigma * theta));
    });
    if (!(found.theta > 0.0)) return std::nullopt;
    const double value = sigma + 1.0 / found.theta;
    const float* ritz = preconditioner.ritz_vector();
    double closest = 0.0;
    for (Index i = 0; i < n; ++i) {
      const double entry = laplacian.panels[panel_entry(i, i)] + lifts[i] * lifts[i];
      closest +=
          kClosestShift * entry * static_cast<double>(ritz[i]) * static_cast<double>(ritz[i]);
    }
    const double up = std::min(sigma + 1.0 / (found.theta + 1.5 * found.residual), value - closest);
    if (found.converged || up - sigma < closest) {
      // The factor must be that of the matrix to some per cent, or the bound would say nothing.
      if (value - sigma < closest) return std::nullopt;
      return refined(laplacian, sigma, tolerance, rounding, preconditioner, workspace);
    }
    std::copy(ritz, ritz + padded, start);
    sigma = up;
  }
  return std::nullopt;
}

}  // namespace attnscope
