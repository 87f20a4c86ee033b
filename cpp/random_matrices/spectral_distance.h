// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "random_matrices/null_law.h"

// Distances between an empirical spectrum (ascending values, each of weight 1/k) and a null.
namespace attnscope {

// Values below this share of the upper edge are beyond what float64 resolves and only count as
// below.
inline constexpr double kResolvedShare = 1e-12;

// The largest difference, which may be `uncertain` away from `distance`.
struct CertifiedDistance {
  double distance, uncertain;
};

// How far a value's square root may be off: so much, and so much of itself.
struct RootError {
  double absolute, relative;
  double of(double root) const { return absolute + relative * root; }
};

// sup |F_emp(x) − F(x)| over x >= floor. A table of the law, where there is one, brackets every
// difference, and only those that can be the largest are computed.
double kolmogorov_smirnov(std::span<const double> values, const NullLaw& law, double floor,
                          const TriangularTable* table = nullptr);

// The same of values that are off by an error, and how far the distance of the true ones may be.
CertifiedDistance certified_kolmogorov_smirnov(std::span<const double> values, RootError error,
                                               const NullLaw& law, double floor,
                                               const TriangularTable* table = nullptr);

// The same of values that are off by at most `error`.
CertifiedDistance certified_kolmogorov_smirnov(std::span<const double> values, double error,
                                               const NullLaw& law, double floor,
                                               const TriangularTable* table = nullptr);

// Where a law reaches the shares of 1, 2, … of `count` values. Each is solved for when it is first
// asked for, and remembered for the next spectrum of as many values.
class LawQuantiles {
 public:
  // Forgets what belongs to another law or another number of values.
  void prepare(const NullLaw& law, std::size_t count);
  // Where F = i/count, 0 < i < count.
  const NullLaw::Point& at(std::size_t i);

 private:
  std::optional<NullLaw> law_;
  std::vector<NullLaw::Point> points_;  // an angle of NaN: not solved for yet
};

// ∫ |F_emp − F| dx over [0, ∞).
double wasserstein(std::span<const double> values, const NullLaw& law, LawQuantiles& quantiles);

// ∫ |F_a − F_b| dx of two empirical spectra.
double wasserstein(std::span<const double> a, std::span<const double> b);

// For each of `pool`'s samples (labelled 0 … count − 1, `size` values each): the sup over x >=
// floor of the difference between its own distribution and that of all other samples together, to
// `deviations`. Every sample is treated alike, so samples that are exchangeable have exchangeable
// deviations. Values within floor of their neighbour count as tied: rounding must not split an
// atom. `pool` is sorted; `passed` is scratch.
void leave_one_out_deviations(std::vector<std::pair<double, Index>>& pool, Index count, Index size,
                              double floor, std::vector<Index>& passed,
                              std::vector<double>& deviations);

}  // namespace attnscope
