// SPDX-License-Identifier: MIT
#pragma once

#include <span>
#include <vector>

#include "linalg/dqds.h"
#include "random_matrices/null_law.h"
#include "random_matrices/spectral_distance.h"

// How far a spectrum is from its law, from how many eigenvalues lie below points and without the
// eigenvalues.
namespace attnscope {

// What the largest eigenvalues of one tridiagonal matrix are compared with.
struct ComparedSpectrum {
  NullLaw law;
  Index values;  // that count, the largest ones
  double error;  // how far from the computed ones they may be
};

// A place on the axis: how far the law and the spectrum are there.
struct CountedPlace {
  NullLaw::Place law;
  double angle;
  double below;  // share of the values that lie below
};

// The values between two places, and what |F_emp − F| is there at most.
struct CountedCell {
  CountedPlace low, high;
  double bound;
  double moved;  // by how much more where the values are off by their error
};

struct CountedDistanceWorkspace {
  AlignedBuffer scaled;
  std::vector<CountedPlace> places;
  std::vector<CountedCell> cells[kMostTogether];
};

// sup |F_emp − F| over x >= kResolvedShare·edge of `spectra.size()` <= dqds_width() tridiagonal
// matrices, which are stored as `tridiagonal_eigenvalues` takes them, to 1e-13; `uncertain` is how
// far the largest difference may be from `distance` where the eigenvalues are off by their error.
//
// Cells between places are divided where they may hold the supremum, by equal steps of the law's
// angle; a place costs a count, O(n). A matrix's result does not depend on the others.
void counted_distances(const double* diagonal, const double* beside, Index n,
                       std::span<const ComparedSpectrum> spectra,
                       std::span<CertifiedDistance> distances, CountedDistanceWorkspace& workspace);

}  // namespace attnscope
