// SPDX-License-Identifier: MIT
#include "random_matrices/counted_distance.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "linalg/packed_tridiagonal.h"

namespace attnscope {
namespace {

constexpr Index kLaneGroups = kMostTogether / kPackWidth;
// No law of a square matrix reaches further.
constexpr double kLargestEdge = 4.0;
// Points of every matrix that are counted side by side, and the cells that they make of one.
constexpr Index kPoints = 2;
// Cells that may hold more than this above the largest difference so far are divided.
constexpr double kResolution = 1e-13;
// Cells that may hold as much more because of the values' error are left as they are.
constexpr double kMovedLittle = 8e-11;

// Points of all matrices, and how many eigenvalues lie below them.
struct Counted {
  alignas(64) double points[kPoints][kMostTogether] = {};
  alignas(64) double below[kPoints][kMostTogether] = {};
};

// Tridiagonal matrices side by side, in units that counts take.
class CountedMatrices {
 public:
  CountedMatrices(const double* diagonal, const double* beside, Index n, Index count,
                  AlignedBuffer& buffer)
      : n_(n),
        groups_((count + kPackWidth - 1) / kPackWidth),
        stride_(dqds_width() / kPackWidth),
        scaled_(lane_buffer(buffer, 2 * n * stride_)),
        squares_(scaled_ + n * stride_) {
    for (Index g = 0; g < groups_; ++g) {
      units_[g] = prepare_counts(reinterpret_cast<const Lanes*>(diagonal) + g,
                                 reinterpret_cast<const Lanes*>(beside) + g, n, stride_,
                                 broadcast(kLargestEdge), scaled_ + g, squares_ + g);
    }
  }

  void count(Counted& counted) const {
    for (Index g = 0; g < groups_; ++g) {
      Lanes x[kPoints];
      LaneMask counts[kPoints];
      for (Index k = 0; k < kPoints; ++k)
        x[k] = reinterpret_cast<const Lanes*>(counted.points[k])[g] * units_[g];
      count_below<kPoints>(scaled_ + g, squares_ + g, n_, stride_, x, counts);
      for (Index k = 0; k < kPoints; ++k) {
        for (Index lane = 0; lane < kPackWidth; ++lane)
          counted.below[k][g * kPackWidth + lane] = static_cast<double>(-counts[k][lane]);
      }
    }
  }

 private:
  Index n_;
  Index groups_;  // that hold a matrix
  Index stride_;  // groups from one row to the next
  Lanes* scaled_;
  Lanes* squares_;
  Lanes units_[kLaneGroups];
};

// The search for one matrix's largest difference.
class DistanceSearch {
 public:
  DistanceSearch(const ComparedSpectrum& spectrum, Index n, std::vector<CountedCell>& cells)
      : spectrum_(spectrum), dropped_(static_cast<double>(n - spectrum.values)), cells_(&cells) {
    cells.clear();
  }

  // The lowest place, and how many eigenvalues may lie below it.
  void begin(CountedPlace floor, double fewest, double most) {
    floor_ = floor;
    add(floor_, 0.5 * (fewest + most));
    const double low = share(fewest), high = share(most);
    if (low != high) {
      uncertain_ = std::max(std::abs(low - floor.law.cdf), std::abs(high - floor.law.cdf));
    }
    last_ = floor_;
  }
  // The next place of the first division.
  void divide_first(CountedPlace place, double below) {
    add(place, below);
    keep(last_, place);
    last_ = place;
  }

  // Where to count next; false once the distance is known.
  bool next(Counted& counted, Index lane) {
    std::erase_if(*cells_, [this](const CountedCell& cell) { return is_settled(cell); });
    if (cells_->empty()) return false;
    const auto top = std::max_element(cells_->begin(), cells_->end(),
                                      [](const CountedCell& a, const CountedCell& b) {
                                        return a.bound + a.moved < b.bound + b.moved;
                                      });
    cell_ = *top;
    *top = cells_->back();
    cells_->pop_back();
    const double step = (cell_.high.angle - cell_.low.angle) / (kPoints + 1);
    for (Index k = 0; k < kPoints; ++k) {
      CountedPlace& place = inside_[k];
      place.angle = cell_.low.angle + step * static_cast<double>(k + 1);
      place.law = spectrum_.law.place(place.angle);
      counted.points[k][lane] = place.law.x;
    }
    return true;
  }
  void take(const Counted& counted, Index lane) {
    for (Index k = 0; k < kPoints; ++k) add(inside_[k], counted.below[k][lane]);
    keep(cell_.low, inside_[0]);
    for (Index k = 0; k + 1 < kPoints; ++k) keep(inside_[k], inside_[k + 1]);
    keep(inside_[kPoints - 1], cell_.high);
  }

  CertifiedDistance distance() const {
    return {distance_, std::clamp(uncertain_ - distance_, 0.0, 1.0)};
  }

 private:
  double share(double below) const {
    return std::max(0.0, below - dropped_) / static_cast<double>(spectrum_.values);
  }
  void add(CountedPlace& place, double below) {
    place.below = share(below);
    distance_ = std::max(distance_, std::abs(place.below - place.law.cdf));
  }
  void keep(const CountedPlace& low, const CountedPlace& high) {
    const double bound = std::max(high.below - low.law.cdf, high.law.cdf - low.below);
    const double x = low.law.x, error = spectrum_.error;
    // The density falls, and below the floor nothing is compared.
    const double at_floor = floor_.law.density;
    const double steepest =
        x > 2.0 * error ? std::min(at_floor, 1.05 * low.law.density * x / (x - error)) : at_floor;
    CountedCell cell{low, high, bound, error * steepest};
    if (!is_settled(cell)) cells_->push_back(cell);
  }
  // Whether a cell need not be divided. What it may hold because of the error is remembered.
  bool is_settled(const CountedCell& cell) {
    const double above = cell.bound - distance_;
    const bool little = cell.moved <= kMovedLittle;
    if (little ? above <= kResolution : above + cell.moved <= kResolution) {
      uncertain_ = std::max(uncertain_, cell.bound + cell.moved);
      return true;
    }
    // Nothing smaller can be told apart.
    const double width = cell.high.law.cdf - cell.low.law.cdf;
    if (width > std::max(0.5 * kResolution, little ? 0.0 : 0.1 * cell.moved)) return false;
    uncertain_ = std::max(uncertain_, cell.bound + cell.moved);
    return true;
  }

  ComparedSpectrum spectrum_;
  double dropped_;
  std::vector<CountedCell>* cells_;
  CountedPlace floor_{}, last_{};
  CountedCell cell_{};
  std::array<CountedPlace, kPoints> inside_{};
  double distance_ = 0.0;
  double uncertain_ = 0.0;
};

// Appends places at equal steps of the law's angle from the floor to the upper edge, which is the
// last.
void spread_places(const NullLaw& law, Index count, std::vector<CountedPlace>& places) {
  const double edge = law.edge();
  const double floor = kResolvedShare * edge;
  const double angle = law.angle(floor);
  NullLaw::Place at = law.place(angle);
  at.x = floor;  // which may lie below the support
  places.push_back({at, angle, 0.0});
  for (Index k = count - 1; k > 0; --k) {
    const double t = angle * static_cast<double>(k) / static_cast<double>(count);
    places.push_back({law.place(t), t, 0.0});
  }
  places.push_back({{edge, 1.0, law.place(0.0).density}, 0.0, 0.0});
}

}  // namespace

void counted_distances(const double* diagonal, const double* beside, Index n,
                       std::span<const ComparedSpectrum> spectra,
                       std::span<CertifiedDistance> distances,
                       CountedDistanceWorkspace& workspace) {
  const auto lanes = static_cast<Index>(spectra.size());
  const CountedMatrices matrices(diagonal, beside, n, lanes, workspace.scaled);
  // As many places as leave few values between them, and even.
  const Index count = std::clamp<Index>(n / 8 * 2, 8, 64);
  std::vector<CountedPlace>& places = workspace.places;
  places.clear();
  std::vector<DistanceSearch> searches;
  searches.reserve(lanes);
  std::array<Index, kMostTogether> first{};  // a matrix's places
  Counted counted;
  for (Index lane = 0; lane < lanes; ++lane) {
    const ComparedSpectrum& spectrum = spectra[lane];
    if (lane > 0 && spectrum.law == spectra[lane - 1].law) {
      first[lane] = first[lane - 1];
    } else {
      first[lane] = static_cast<Index>(places.size());
      spread_places(spectrum.law, count, places);
    }
    const double floor = places[first[lane]].law.x;
    counted.points[0][lane] = floor - spectrum.error;
    counted.points[1][lane] = floor + spectrum.error;
    searches.emplace_back(spectrum, n, workspace.cells[lane]);
  }
  matrices.count(counted);
  for (Index lane = 0; lane < lanes; ++lane) {
    searches[lane].begin(places[first[lane]], counted.below[0][lane], counted.below[1][lane]);
  }
  for (Index k = 1; k <= count; k += kPoints) {
    const auto place = [&](Index lane, Index point) { return places[first[lane] + k + point]; };
    for (Index lane = 0; lane < lanes; ++lane) {
      for (Index p = 0; p < kPoints; ++p) counted.points[p][lane] = place(lane, p).law.x;
    }
    matrices.count(counted);
    for (Index lane = 0; lane < lanes; ++lane) {
      for (Index p = 0; p < kPoints; ++p)
        searches[lane].divide_first(place(lane, p), counted.below[p][lane]);
    }
  }
  for (bool any_left = true; any_left;) {
    any_left = false;
    std::array<bool, kMostTogether> goes_on{};
    for (Index lane = 0; lane < lanes; ++lane) {
      goes_on[lane] = searches[lane].next(counted, lane);
      any_left |= goes_on[lane];
    }
    if (!any_left) break;
    matrices.count(counted);
    for (Index lane = 0; lane < lanes; ++lane) {
      if (goes_on[lane]) searches[lane].take(counted, lane);
    }
  }
  for (Index lane = 0; lane < lanes; ++lane) distances[lane] = searches[lane].distance();
}

}  // namespace attnscope
