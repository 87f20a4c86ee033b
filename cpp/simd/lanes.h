// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

#include "simd/memory.h"

// Packs: equal-sized matrices interleaved entry by entry, one matrix a lane, so that one vector
// instruction does the same step of kPackWidth matrices and no lane ever sees another.
//
// The width follows the instruction set that a file is compiled for, so only files that are
// compiled once for each include this header: kernels' .cpp files and tests/cpp/lanes. Elsewhere
// the linker would take one width's functions for the other's. A kernel's own header offers the
// width as a function.
#if !defined(ATTNSCOPE_LANES)
#error "lanes.h is for files that are compiled for every instruction set"
#endif
namespace attnscope {

// A build may ask for a width of its own: eight lanes on a processor without AVX-512 take the same
// way through every kernel as with it, which is how that way is tested on any machine. What an
// intrinsic does has a portable form beside it, in namespace `portable`, for widths that no
// instruction has.
#if defined(ATTNSCOPE_PACK_WIDTH)
#elif defined(__AVX512F__)
#define ATTNSCOPE_PACK_WIDTH 8
#elif defined(__AVX__)
#define ATTNSCOPE_PACK_WIDTH 4
#else
#define ATTNSCOPE_PACK_WIDTH 2
#endif
inline constexpr Index kPackWidth = ATTNSCOPE_PACK_WIDTH;

// Which instructions work on whole packs.
#if defined(__AVX512F__) && defined(__AVX512DQ__) && ATTNSCOPE_PACK_WIDTH == 8
#define ATTNSCOPE_AVX512_PACKS
#elif defined(__AVX__) && ATTNSCOPE_PACK_WIDTH == 4
#define ATTNSCOPE_AVX_PACKS
#endif

// One float64 entry of every matrix of a pack, and the mask that comparing two of them gives: all
// bits set in a lane where the comparison holds. Masks choose lanes: `mask ? a : b`.
typedef double Lanes __attribute__((vector_size(kPackWidth * sizeof(double)), may_alias));
typedef long LaneMask __attribute__((vector_size(kPackWidth * sizeof(long))));
static_assert(sizeof(long) == sizeof(double));

// Twice as many float32 numbers in as many bytes: entries of one matrix, where float64 is not
// needed.
inline constexpr Index kFloatsInPack = 2 * kPackWidth;
typedef float FloatLanes __attribute__((vector_size(kFloatsInPack * sizeof(float)), may_alias));
typedef int FloatPlaces __attribute__((vector_size(kFloatsInPack * sizeof(int))));
static_assert(sizeof(int) == sizeof(float));

// value − 0 is value, −0 too, so that nothing is left to compute; value + 0 would turn −0 into 0.
inline Lanes broadcast(double value) { return value - Lanes{}; }
inline FloatLanes broadcast(float value) { return value - FloatLanes{}; }

inline Lanes square_root(Lanes x) {
  Lanes root;
  for (Index lane = 0; lane < kPackWidth; ++lane) root[lane] = std::sqrt(x[lane]);
  return root;
}

// a·b + c, rounded once where the instruction set does that in one step, in every copy of the code:
// which of two products a compiler fuses with their sum may differ from place to place.
inline Lanes multiply_add(Lanes a, Lanes b, Lanes c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  Lanes result;
  for (Index lane = 0; lane < kPackWidth; ++lane) {
    result[lane] = __builtin_fma(a[lane], b[lane], c[lane]);
  }
  return result;
#else
  return a * b + c;
#endif
}

inline Lanes larger(Lanes a, Lanes b) { return a > b ? a : b; }
inline Lanes smaller(Lanes a, Lanes b) { return a < b ? a : b; }
inline Lanes magnitude(Lanes x) { return x < 0.0 ? -x : x; }

// Entry k is entry places[k] of a and b, one behind the other. Clang has no shuffle with places in
// a vector.
inline Lanes picked(Lanes a, Lanes b, LaneMask places) {
#if defined(__clang__)
  Lanes result{};
  for (Index k = 0; k < kPackWidth; ++k) {
    result[k] = places[k] < kPackWidth ? a[places[k]] : b[places[k] - kPackWidth];
  }
  return result;
#else
  return __builtin_shuffle(a, b, places);
#endif
}
inline FloatLanes picked(FloatLanes a, FloatLanes b, FloatPlaces places) {
#if defined(__clang__)
  FloatLanes result{};
  for (Index k = 0; k < kFloatsInPack; ++k) {
    result[k] = places[k] < kFloatsInPack ? a[places[k]] : b[places[k] - kFloatsInPack];
  }
  return result;
#else
  return __builtin_shuffle(a, b, places);
#endif
}

inline bool any(LaneMask mask) {
  long bits = 0;
  for (Index lane = 0; lane < kPackWidth; ++lane) bits |= mask[lane];
  return bits != 0;
}

inline double sum_of_lanes(Lanes x) {
  double sum = 0.0;
  for (Index lane = 0; lane < kPackWidth; ++lane) sum += x[lane];
  return sum;
}

inline float sum_of_lanes(FloatLanes x) {
  float sums[4] = {};  // four chains, since each sum waits for the last
  for (Index lane = 0; lane < kFloatsInPack; ++lane) sums[lane % 4] += x[lane];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// `size` entries of a pack in `buffer`, not initialised.
inline Lanes* lane_buffer(AlignedBuffer& buffer, Index size) {
  return reinterpret_cast<Lanes*>(buffer.resize(size * kPackWidth));
}

}  // namespace attnscope
