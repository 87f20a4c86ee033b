// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "kernels/spectra/singular_values.h"
#include "matrix/matrix_view.h"
#include "random_matrices/counted_distance.h"
#include "random_matrices/float_row_spectrum.h"
#include "random_matrices/null_law.h"
#include "random_matrices/row_spectrum.h"
#include "random_matrices/spectral_distance.h"

namespace attnscope {

// What the spectrum is compared with. `automatic` takes the Marchenko–Pastur law for full support,
// the triangular law for causal support, of a rectangle that of its trapezoid, and the permutation
// null for any other.
enum class SpectralNull { automatic, full, causal, permutation };

struct MarchenkoPasturOptions {
  SpectralNull null = SpectralNull::automatic;
  Index draws = 20;  // of the permutation null, >= 1
  std::uint64_t seed = 0;
  bool all_fields = true;  // false: ks and edge alone, the others as where nothing is defined
  // Makes the triangular law quick; without it the law is solved point by point. Made once by the
  // caller, because it costs as much as a hundred small maps.
  const TriangularTable* triangular = nullptr;
  Precision precision = Precision::exact;
};

// Fewer tokens than this give too few eigenvalues to compare with a law.
inline constexpr Index kFewestTokens = 8;

struct MarchenkoPastur {
  double ks = kNaN;
  double wasserstein = kNaN;
  Index outliers = -1;
  double outlier_energy = kNaN;
  double largest = kNaN;
  double edge = kNaN;
  double p_value = kNaN;
};

struct MarchenkoPasturWorkspace {
  struct Rows {
    std::vector<double> standardized;  // rows over their visible keys, zeros elsewhere
    std::vector<Index> varying;        // rows that vary
    std::vector<double> sigma;         // descending, min(queries, keys)
    SpectralNull null = SpectralNull::full;
    std::uint64_t key = 0;
  };
  std::vector<Rows> maps;  // one for each matrix that is worked on together
  RowSpectrumWorkspace row_spectrum;
  FloatRowSpectrumWorkspace float_rows;
  CountedDistanceWorkspace counted;
  std::vector<ComparedSpectrum> compared;
  std::vector<CertifiedDistance> distances;
  LawQuantiles quantiles;
  SingularValuesWorkspace singular_values;
  std::vector<double> shuffled;  // draws that are worked on together
  std::vector<double> row;
  std::vector<Index> columns;  // visible keys, of one row
  std::vector<double> sigma;
  std::vector<double> spectrum;  // ascending
  std::vector<double> null;      // the draws' spectra, one after another
  std::vector<std::pair<double, Index>> pool;
  std::vector<Index> passed;
  std::vector<double> deviations;
};

// Compares the spectrum of the standardised rows of one matrix with its null law. X_ij = (A_ij −
// m_i)/s_i over each row's visible keys and 0 elsewhere; rows whose visible entries are all equal
// are dropped; x_k = σ_k(X)²/n for the k kept rows, n the keys that any query sees. Where more rows
// are kept they are n, and the values are as many as keys.
//
//  ks              sup |F_emp − F| over x >= 1e-12·edge; eigenvalues below count as below
//  wasserstein     ∫ |F_emp − F| dx
//  outliers        #{x > edge·(1 + m^{-2/3})}, m = min(queries, keys);  outlier_energy: their
//                  share of Σx
//  largest         largest x
//  edge            upper edge of the law (the permutation null: the largest pooled value)
//  p_value         (1 + #{draws at least as far from all the others as the map is})/(1 + draws),
//                  NaN for a law
//
// The permutation null shuffles each row's visible entries; its random numbers come from the seed
// and the matrix's own entries, so neither its place in a batch nor the thread matters. m < 8, or
// no row that varies: NaN, outliers −1. Cost O(n³), times (1 + draws) for the permutation null.
//
// The eigenvalues against a law are those of XXᵀ, whose absolute error is a rounding of the
// largest. Small ones are not known to many digits then; where that could move ks by more than
// 1e-10 the map's singular values decide. ks needs counts of eigenvalues alone, and only where they
// decide; it is the same without the other fields as with them.
//
// `fast` takes singular values of X from float32 arithmetic, of squares of 257 to 1,024 rows that
// are compared with the law of their support, and reads ks of smaller ones off the eigenvalues that
// the other fields take, instead of counts; all else is exact. ks is certain to 1e-4 then, the
// other numbers are off by less than 1e-5 of themselves, and outliers are those of the exact way: a
// map of which that is not known is measured exactly. Returns how many there were.
//
// `matrices`: 1 to singular_values_width(options.precision) of one size, each with its support;
// results go to the same places. A matrix's result does not depend on the others.
template <class Scalar>
Index marchenko_pastur(std::span<const MatrixView<Scalar>> matrices,
                       std::span<const Support> supports, const MarchenkoPasturOptions& options,
                       std::span<MarchenkoPastur> results, MarchenkoPasturWorkspace& workspace);

}  // namespace attnscope
