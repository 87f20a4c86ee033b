// SPDX-License-Identifier: MIT
#include "random_matrices/spectral_distance.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnscope {
namespace {

// How far the distance may be of values that lie between moved(value, −1) and moved(value, 1); what
// F rises by between those two is at most `most_rise`, where that is known.
template <class Moved>
CertifiedDistance certified(std::span<const double> values, const Moved& moved, double most_rise,
                            const NullLaw& law, double floor, const TriangularTable* table) {
  const double k = static_cast<double>(values.size());
  const double distance = kolmogorov_smirnov(values, law, floor, table);
  // What the distance is at most and at least.
  double most = distance, least = 0.0;
  const auto count_below = [&](double times) {
    const auto end = std::ranges::partition_point(
        values, [&](double value) { return moved(value, times) < floor; });
    return end - values.begin();
  };
  const auto surely_below = count_below(1.0), perhaps_below = count_below(-1.0);
  const double at_floor = law.cdf(floor);
  for (const auto below : {surely_below, perhaps_below})
    most = std::max(most, std::abs(static_cast<double>(below) / k - at_floor));
  if (surely_below == perhaps_below)
    least = std::abs(static_cast<double>(surely_below) / k - at_floor);
  if (std::isfinite(most_rise)) return {distance, std::max(most - distance, most_rise)};
  for (auto i = static_cast<std::size_t>(surely_below); i < values.size(); ++i) {
    const double before = static_cast<double>(i) / k, after = static_cast<double>(i + 1) / k;
    const double from = std::max(floor, moved(values[i], -1.0)), to = moved(values[i], 1.0);
    if (table != nullptr) {
      const auto [low, high] = table->cdf(from, to);
      if (std::max(high - before, after - low) < distance) continue;
    }
    const double low = law.cdf(from), high = law.cdf(to);
    most = std::max({most, high - before, after - low});
    least = std::max({least, low - before, after - high});
  }
  return {distance, std::max(most - distance, distance - least)};
}

}  // namespace

double kolmogorov_smirnov(std::span<const double> values, const NullLaw& law, double floor,
                          const TriangularTable* table) {
  const double k = static_cast<double>(values.size());
  const auto below = static_cast<std::size_t>(
      std::lower_bound(values.begin(), values.end(), floor) - values.begin());
  // |F_emp − F| on either side of value i, F between low and high: at least and at most.
  const auto differences = [&](std::size_t i, double low, double high) {
    const double before = static_cast<double>(i) / k;
    const double after = static_cast<double>(i + 1) / k;
    return std::pair(std::max({0.0, low - before, after - high}),
                     std::max(high - before, after - low));
  };
  // What is known of a value before F is solved for it alone.
  const auto coarse = [&](std::size_t i) {
    if (table == nullptr) return std::pair(0.0, 1.0);
    const auto [low, high] = table->cdf(values[i], values[i]);
    return differences(i, low, high);
  };
  double distance = std::abs(static_cast<double>(below) / k - law.cdf(floor));
  double certain = distance;
  for (std::size_t i = below; i < values.size(); ++i) certain = std::max(certain, coarse(i).first);
  for (std::size_t i = below; i < values.size(); ++i) {
    if (coarse(i).second < certain) continue;
    const double at = law.cdf(values[i]);
    distance = std::max(distance, differences(i, at, at).second);
  }
  return distance;
}

CertifiedDistance certified_kolmogorov_smirnov(std::span<const double> values, RootError error,
                                               const NullLaw& law, double floor,
                                               const TriangularTable* table) {
  const auto moved = [=](double value, double times) {
    const double root = std::sqrt(value);
    const double end = std::max(0.0, root + times * error.of(root));
    return end * end;
  };
  const double most_rise = error.of(std::sqrt(law.edge())) * law.steepest_by_root();
  return certified(values, moved, most_rise, law, floor, table);
}

CertifiedDistance certified_kolmogorov_smirnov(std::span<const double> values, double error,
                                               const NullLaw& law, double floor,
                                               const TriangularTable* table) {
  const auto moved = [=](double value, double times) { return value + times * error; };
  return certified(values, moved, std::numeric_limits<double>::infinity(), law, floor, table);
}

void LawQuantiles::prepare(const NullLaw& law, std::size_t count) {
  if (law_ == law && points_.size() == count) return;
  law_ = law;
  points_.assign(count, {.x = 0.0, .angle = std::numeric_limits<double>::quiet_NaN()});
}

const NullLaw::Point& LawQuantiles::at(std::size_t i) {
  NullLaw::Point& point = points_[i];
  if (std::isnan(point.angle)) {
    point = law_->quantile(static_cast<double>(i) / static_cast<double>(points_.size()));
  }
  return point;
}

double wasserstein(std::span<const double> values, const NullLaw& law, LawQuantiles& quantiles) {
  quantiles.prepare(law, values.size());
  const double k = static_cast<double>(values.size());
  double distance = 0.0;
  NullLaw::Point left = law.at(0.0);
  for (std::size_t i = 0; i <= values.size(); ++i) {
    // F_emp is `level` between `left` and `right`.
    const double level = static_cast<double>(i) / k;
    const NullLaw::Point right =
        law.at(i < values.size() ? values[i] : std::max(left.x, law.edge()));
    const auto above = [&](const NullLaw::Point& from, const NullLaw::Point& to) {
      return level * (to.x - from.x) - (to.integral - from.integral);  // ∫ (F_emp − F)
    };
    if (right.cdf <= level) {
      distance += above(left, right);
    } else if (left.cdf >= level) {
      distance -= above(left, right);
    } else {
      // Rounding must not put it outside.
      NullLaw::Point middle = quantiles.at(i);
      middle.x = std::clamp(middle.x, left.x, right.x);
      distance += above(left, middle) - above(middle, right);
    }
    left = right;
  }
  return distance;
}

double wasserstein(std::span<const double> a, std::span<const double> b) {
  double distance = 0.0;
  double left = 0.0;
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < a.size() || j < b.size()) {
    const bool from_a = j == b.size() || (i < a.size() && a[i] <= b[j]);
    const double right = from_a ? a[i] : b[j];
    const double gap = static_cast<double>(i) / static_cast<double>(a.size()) -
                       static_cast<double>(j) / static_cast<double>(b.size());
    distance += std::abs(gap) * (right - left);
    left = right;
    ++(from_a ? i : j);
  }
  return distance;
}

void leave_one_out_deviations(std::vector<std::pair<double, Index>>& pool, Index count, Index size,
                              double floor, std::vector<Index>& passed,
                              std::vector<double>& deviations) {
  std::sort(pool.begin(), pool.end());
  passed.assign(count, 0);
  deviations.assign(count, 0.0);
  const double own_weight = 1.0 / static_cast<double>(size);
  const double others_weight = 1.0 / static_cast<double>(size * (count - 1));
  const auto note = [&](Index sample, Index total) {
    const double below_own = static_cast<double>(passed[sample]) * own_weight;
    const double below_others = static_cast<double>(total - passed[sample]) * others_weight;
    deviations[sample] = std::max(deviations[sample], std::abs(below_own - below_others));
  };
  std::size_t end = 0;
  while (end < pool.size() && pool[end].first < floor) ++passed[pool[end++].second];
  for (Index sample = 0; sample < count; ++sample) note(sample, static_cast<Index>(end));
  while (end < pool.size()) {
    const std::size_t begin = end;
    do {
      ++end;
    } while (end < pool.size() && pool[end].first - pool[end - 1].first <= floor);
    // Between two of a sample's own values the difference is monotone, so its ends are enough.
    for (std::size_t i = begin; i < end; ++i) note(pool[i].second, static_cast<Index>(begin));
    for (std::size_t i = begin; i < end; ++i) ++passed[pool[i].second];
    for (std::size_t i = begin; i < end; ++i) note(pool[i].second, static_cast<Index>(end));
  }
}

}  // namespace attnscope
