// SPDX-License-Identifier: MIT
#include "graphs/preconditioned_fiedler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "linalg/panel_tridiagonal.h"
#include "linalg/refinement/davidson.h"
#include "linalg/refinement/float_preconditioner.h"
#include "linalg/refinement/rayleigh_descent.h"

namespace attnscope {
namespace {

constexpr int kMostRounds = 8;
// A shift closer to λ2 than this share of its vector's mean diagonal entry drowns in the factor's
// rounding. A hub's large entry does not count where the vector has nothing: rounding is relative
// to the entries of a row and a column (Demmel 1989, on the scaled condition number of Cholesky's
// factor).
constexpr double kClosestShift = 2e-6;
// The share of the error allowed that a Rayleigh quotient may have: its bound is no larger than the
// error, unlike that of a residual.
constexpr double kQuotientShare = 0.1;
// rᵀB⁻¹r that Lanczos steps and Davidson's aim at, as a share of λ2: far below the error that is
// allowed, so that λ3 may be near.
constexpr double kAimedSquare = 1e-13;
// Below this share of λ2's eigenvalue of the inverse, a second start does not look for λ3's: it is
// likely to find it there.
constexpr double kLeastLevel = 0.9;
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

// How far from a shift below λ2 to one above the next is tried.
constexpr double kBelowFailure = 0.8;

// Products with the matrix that a first shift may cost.
int most_descents(Index n) { return n < 192 ? 8 : n < 384 ? 12 : 16; }

// The diagonal of L + lifts·liftsᵀ − σ to the float32 panels.
void put_diagonal(const LaplacianPanels& laplacian, const double* lifts, double sigma, float* out) {
  const Index n = laplacian.n;
  for (Index i = 0; i < panels_of<float>(n) * PanelShape<float>::kWidth; ++i) {
    const double entry =
        i < n ? laplacian.panels[panel_entry(i, i)] + lifts[i] * lifts[i] - sigma : 1.0;
    out[panel_entry<float>(i, i)] = static_cast<float>(entry);
  }
}

// The float32 panels of L + lifts·liftsᵀ − σ. Diagonal blocks hold what those of the Laplacian do,
// and 0 below that.
void fill_factor(const LaplacianPanels& laplacian, const double* lifts, double sigma, float* out) {
  typedef float Half __attribute__((vector_size(kPackWidth * sizeof(float)), may_alias));
  constexpr Index kWidth = PanelShape<float>::kWidth;
  const Index n = laplacian.n;
  const Index columns = panels_of(n) * kPanel;
  for (Index first = 0; first < n; first += kWidth) {
    const Index end = std::min(n, first + kWidth);
    float* panel = out + panel_entry<float>(0, first);
    for (Index column = first; column < first + kWidth; column += kPackWidth) {
      float* to = panel + (column - first);
      Index k = 0;
      if (column < columns) {
        const Index s = column / kPanel;
        const double* from = laplacian.panels + panel_offset(s) + (column - s * kPanel);
        const Lanes along = *lanes_at(lifts + column);
        for (; k < std::min(end, (s + 1) * kPanel); ++k) {
          const Lanes entries = *lanes_at(from + k * kPanel) + lifts[k] * along;
          *reinterpret_cast<Half*>(to + k * kWidth) = __builtin_convertvector(entries, Half);
        }
      }
      for (; k < first + kWidth; ++k) *reinterpret_cast<Half*>(to + k * kWidth) = Half{};
    }
  }
  put_diagonal(laplacian, lifts, sigma, out);
}

// A vector of the preconditioner to begin with, and a shift that is likely to be below λ2, 0 where
// some products with the matrix do not tell: a product costs a small part of a factor. The factor
// becomes the matrix less that shift.
double begin(const LaplacianPanels& laplacian, const double* lifts, float* factor,
             FloatPreconditioner& preconditioner) {
  constexpr Index kWidth = PanelShape<float>::kWidth;
  const Index n = laplacian.n;
  const Index padded = preconditioner.padded();
  fill_factor(laplacian, lifts, 0.0, factor);
  for (Index s = 0; s < padded; s += kWidth) {
    float* block = factor + panel_entry<float>(s, s);
    for (Index r = 0; r < kWidth; ++r) {
      const Index before_block = (s + r) / kPanel * kPanel - s;
      for (Index c = 0; c < before_block; ++c) block[r * kWidth + c] = block[c * kWidth + r];
    }
  }
  float* x = preconditioner.vector(1);
  float* diagonal = preconditioner.vector(2);
  float least = std::numeric_limits<float>::max();
  for (Index i = 0; i < padded; ++i) {
    diagonal[i] = i < n ? static_cast<float>(laplacian.panels[panel_entry(i, i)]) : 1.0f;
    if (i < n) least = std::min(least, diagonal[i]);
  }
  for (Index i = 0; i < padded; ++i) x[i] = i < n ? 1.0f / (diagonal[i] - 0.9f * least) : 0.0f;
  const auto typical = static_cast<float>(0.5 * laplacian.lift);  // the mean degree
  const Descent end = rayleigh_descent<float>(
      padded, diagonal, typical, preconditioner.vector(0), most_descents(n), 0.02, 0.5, x,
      preconditioner.vector(3),
      [&](const float* v, float* image) { panel_product(factor, panels_of<float>(n), v, image); });
  // Steps never leave a symmetry of graph and start that λ2's vector may not have.
  const double drawn = 0.3 / std::sqrt(static_cast<double>(n));
  for (Index i = 0; i < n; ++i) x[i] += static_cast<float>(drawn * start_entry(i));
  if (!(end.residual < 0.3 * end.value)) return 0.0;
  const double down = std::max(1.2 * end.residual + end.fall, 0.005 * end.value);
  if (down > 0.8 * end.value) return 0.0;
  put_diagonal(laplacian, lifts, end.value - down, factor);
  return end.value - down;
}

// λ2 from the Ritz vector that the preconditioner has come to, in float64. Eigenvalues of its
// factor are those of the matrix but for `noise`.
//
// The Rayleigh quotient μ of a unit vector Σ c_i x_i with residual r = (A − μ)x has
// c_2² (μ − λ2) = Σ c_i² (λ_i − μ) over i > 2, which is at most rᵀ(A − σ)⁻¹r / (1 − (μ − σ)/(λ3 −
// σ)): where a second start says that λ3 is far enough, that is a bound of the error. Where others
// crowd around λ2, the square root of rᵀ(A − σ)⁻¹r · (μ − σ) is one, see davidson_steps.
std::optional<double> refined(const LaplacianPanels& laplacian, double sigma, double tolerance,
                              double rounding, double noise, FloatPreconditioner& preconditioner,
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
  // B⁻¹r / ‖r‖ to z, B = A − σ, and rᵀB⁻¹r.
  const auto precondition = [&](const double* r, float* z) {
    const double length = std::sqrt(inner_product(r, r, padded));
    if (!(length > 0.0)) return 0.0;
    for (Index i = 0; i < preconditioner.padded(); ++i)
      z[i] = i < n ? static_cast<float>(r[i] / length) : 0.0f;
    preconditioner.solve(z);
    double product = 0.0;
    for (Index i = 0; i < n; ++i) product += r[i] * static_cast<double>(z[i]);
    return std::max(0.0, product * length);
  };
  enum class Next { unknown, far, near, missed } next = Next::unknown;
  const DavidsonEnd end = davidson_steps(
      padded, sigma, basis, images,
      [&](const double* v, double* image) { panel_product(laplacian.panels, count, v, image); },
      [&](double* r, double value) {
        float* z = preconditioner.behind();
        const double square = precondition(r, z);
        const double bound = std::sqrt(square * (value - sigma));
        const double top = 1.0 / (value - sigma);
        const double level = top * (1.0 - square / (kQuotientShare * allowed(value)));
        if (next == Next::unknown && level > kLeastLevel * top) {
          const double highest = top / (1.0 + noise * top);
          if (!preconditioner.may_miss_eigenvalue(std::min(level, highest))) {
            next = Next::far;
            return 0.0;
          }
          const bool missed = level >= highest || preconditioner.may_miss_eigenvalue(highest);
          next = missed ? Next::missed : Next::near;
          if (missed) return 0.0;
          precondition(r, z);
        }
        if (next == Next::near && bound <= allowed(value)) return bound;
        const double share = next == Next::unknown ? std::sqrt(kAimedSquare * value / square)
                                                   : 0.4 * allowed(value) / bound;
        const float* t = preconditioner.correct(z, std::max(3e-5, share));
        for (Index i = 0; i < n; ++i) r[i] = static_cast<double>(t[i]);
        return std::numeric_limits<double>::infinity();
      },
      allowed);
  return end.converged && next != Next::missed ? std::optional(end.value) : std::nullopt;
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
  float* basis = floats(workspace.krylov, FloatPreconditioner::kVectors * padded);
  FloatPreconditioner preconditioner(n, factor, inverses, basis);
  for (Index i = 0; i < padded; ++i)
    basis[i] = i < n ? static_cast<float>(laplacian.null[i]) : 0.0f;
  double sigma = begin(laplacian, lifts, factor, preconditioner);
  float* start = preconditioner.vector(1);
  remove_parts<float>(basis, 1, padded, start);
  scale_vector(start, 1.0 / std::sqrt(inner_product<float>(start, start, padded)), padded);
  const double rounding = 0x1p-53 * static_cast<double>(n) * largest;
  // λ2 lies between these: a factor was made of the matrix less the one, and was none less the
  // other.
  double below = 0.0, above = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kMostRounds; ++round) {
    if (round > 0) fill_factor(laplacian, lifts, sigma, factor);
    if (!preconditioner.factorize()) {
      if (sigma == below) return std::nullopt;
      above = sigma;
      // A first shift that is too high is mostly the third eigenvalue's, just above λ2.
      sigma = below + (round == 0 ? kBelowFailure : 0.25) * (sigma - below);
      continue;
    }
    below = sigma;
    const LanczosRound& lanczos = preconditioner.grow(steps_worth_a_factor(n), [=](double theta) {
      const double relative = 1.0 + sigma * theta;  // λ2 θ
      return std::min(1e-3,
                      std::max(kFloatTolerance * relative, std::sqrt(kAimedSquare * relative)));
    });
    if (!(lanczos.theta > 0.0)) return std::nullopt;
    const double value = sigma + 1.0 / lanczos.theta;
    const float* ritz = preconditioner.ritz_vector();
    double closest = 0.0;
    for (Index i = 0; i < n; ++i) {
      const double entry = laplacian.panels[panel_entry(i, i)] + lifts[i] * lifts[i];
      closest +=
          kClosestShift * entry * static_cast<double>(ritz[i]) * static_cast<double>(ritz[i]);
    }
    const double up =
        std::min(sigma + 1.0 / (lanczos.theta + 1.5 * lanczos.residual), value - closest);
    if (lanczos.converged || up - sigma < closest) {
      // The factor must be that of the matrix to some per cent, or the bound would say nothing.
      if (value - sigma < closest) return std::nullopt;
      return refined(laplacian, sigma, tolerance, rounding, closest, preconditioner, workspace);
    }
    std::copy(ritz, ritz + padded, start);
    sigma = up < above ? up : below + kBelowFailure * (above - below);
  }
  return std::nullopt;
}

}  // namespace attnscope
