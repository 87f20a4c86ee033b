// SPDX-License-Identifier: MIT
#include "graphs/packs/float_graph_pack.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "linalg/float_packs.h"
#include "linalg/lanczos/shifted_lanczos.h"
#include "linalg/packed_tridiagonal.h"

namespace attnscope {
namespace {

// Halvings that leave the eigenvalues of the tridiagonal matrix far closer than float32 made it.
constexpr int kHalvings = 24;
// A shift this far below the smallest eigenvalue, of `size`, is safely below it: four times what
// the halvings leave.
constexpr double kBelow = 2.5e-7;

constexpr std::uint64_t bits_before(Index place) { return (std::uint64_t{1} << (place % 64)) - 1; }

// The lower triangles of L + 11ᵀ: 1 where a graph has no edge, 0 where it has. The rows behind
// those of a graph, and the lanes without one, are eigenvalues far above.
void fill(Index size, std::span<const GraphBits> graphs, FloatLanes* a) {
  const Index words = (size + 63) / 64;
  const float far = 2.0f * static_cast<float>(size);
  const auto bits_of_1 = std::bit_cast<FloatPlaces>(broadcast(1.0f));
  for (Index i = 0; i < size; ++i) {
    FloatLanes* row = a + triangle_row(i);
    FloatLanes diagonal_entry = broadcast(far);
    for (std::size_t lane = 0; lane < graphs.size(); ++lane) {
      if (i < graphs[lane].nodes)
        diagonal_entry[lane] = static_cast<float>(graphs[lane].degree[i] + 1.0);
    }
    for (Index begin = 0; begin < i; begin += 32) {
      FloatPlaces bits = ~FloatPlaces{};
      for (std::size_t lane = 0; lane < graphs.size(); ++lane) {
        if (i >= graphs[lane].nodes) continue;
        const std::uint64_t word = graphs[lane].edges[i * words + begin / 64];
        bits[lane] = static_cast<int>(static_cast<std::uint32_t>(word >> (begin % 64)));
      }
      const Index end = std::min(begin + 32, i);
      for (Index j = begin; j < end; ++j) {
        row[j] = std::bit_cast<FloatLanes>(((bits & 1) - 1) & bits_of_1);
        bits >>= 1;
      }
    }
    row[i] = diagonal_entry;
  }
}

// The eigenvector of the smallest eigenvalue of a tridiagonal matrix, from a shift that is just
// below it, so that no pivot comes near 0. `scratch` holds 2 n.
void smallest_eigenvector(const Lanes* diagonal, const Lanes* beside, Index n, Lanes shift,
                          Lanes* vector, Lanes* scratch) {
  Lanes* inverses = scratch;
  Lanes* factors = scratch + n;
  Lanes below{};  // of the square beside the diagonal over the pivot before
  for (Index i = 0; i < n; ++i) {
    inverses[i] = 1.0 / (diagonal[i] - shift - below);
    if (i + 1 == n) break;
    factors[i] = beside[i] * inverses[i];
    below = factors[i] * beside[i];
  }
  for (Index i = 0; i < n; ++i) vector[i] = broadcast(start_entry(i));
  // A step leaves of another eigenvector the share that the shift's distance is of that one's.
  for (int step = 0; step < 3; ++step) {
    for (Index i = 1; i < n; ++i) vector[i] -= factors[i - 1] * vector[i - 1];
    vector[n - 1] *= inverses[n - 1];
    for (Index i = n - 2; i >= 0; --i)
      vector[i] = vector[i] * inverses[i] - factors[i] * vector[i + 1];
    Lanes square{};
    for (Index i = 0; i < n; ++i) square += vector[i] * vector[i];
    const Lanes scale = 1.0 / square_root(square);
    for (Index i = 0; i < n; ++i) vector[i] *= scale;
  }
}

struct Quotient {
  double value;
  double square;  // of the residual of the unit vector
};

// The Rayleigh quotient of L with x less its mean; image is scratch, both of graph.nodes.
Quotient rayleigh_quotient(const GraphBits& graph, Index words, double* x, double* image) {
  const Index n = graph.nodes;
  double mean = 0.0;
  for (Index i = 0; i < n; ++i) mean += x[i];
  mean /= static_cast<double>(n);
  for (Index i = 0; i < n; ++i) x[i] -= mean;
  std::fill(image, image + n, 0.0);
  for (Index i = 1; i < n; ++i) {
    const std::uint64_t* row = graph.edges + i * words;
    double sum = 0.0;
    for (Index word = 0; word <= i / 64; ++word) {
      std::uint64_t rest = row[word] & (word < i / 64 ? ~std::uint64_t{0} : bits_before(i));
      for (; rest != 0; rest &= rest - 1) {
        const Index j = 64 * word + std::countr_zero(rest);
        const double difference = x[i] - x[j];
        sum += difference;
        image[j] -= difference;
      }
    }
    image[i] += sum;
  }
  double product = 0.0, length = 0.0, square = 0.0;
  for (Index i = 0; i < n; ++i) {
    product += x[i] * image[i];
    length += x[i] * x[i];
  }
  const double value = product / length;
  for (Index i = 0; i < n; ++i) {
    const double residual = image[i] - value * x[i];
    square += residual * residual;
  }
  return {value, square / length};
}

}  // namespace

Index float_graph_pack_width() { return kFloatsInPack; }

void FloatGraphPack::solve(Index size, std::span<const GraphBits> graphs, FloatPair* pairs) {
  const auto count = static_cast<Index>(graphs.size());
  const Index words = (size + 63) / 64;
  FloatLanes* a = float_lane_buffer(matrices_, triangle_row(size));
  fill(size, graphs, a);
  FloatLanes* diagonal = float_lane_buffer(lines_, 8 * size);
  FloatLanes* beside = diagonal + size;
  FloatLanes* taus = diagonal + 2 * size;
  FloatLanes* vector = diagonal + 3 * size;
  tridiagonalize(a, size, diagonal, beside, 1, diagonal + 4 * size, taus);
  beside[size - 1] = FloatLanes{};
  std::fill(vector, vector + size, FloatLanes{});
  double second[kFloatsInPack];
  for (Index half = 0; half * kPackWidth < count; ++half) {
    Lanes* wide = lane_buffer(wide_lines_, 7 * size);
    for (Index i = 0; i < 2 * size; ++i) {
      const HalfPack part = reinterpret_cast<const HalfPack*>(diagonal)[2 * i + half];
      wide[i] = wide[2 * size + i] = __builtin_convertvector(part, Lanes);
    }
    Lanes high = broadcast(1.0);
    for (Index lane = 0; lane < std::min(kPackWidth, count - half * kPackWidth); ++lane) {
      // By rounding an eigenvalue of as much as the nodes may be above them.
      const auto nodes = static_cast<double>(graphs[half * kPackWidth + lane].nodes);
      high[lane] = nodes + kFloatPairError * static_cast<double>(size);
    }
    Lanes first, next;
    two_smallest_eigenvalues(wide + 2 * size, wide + 3 * size, size, high, first, next, kHalvings);
    Lanes* eigenvector = wide + 4 * size;
    smallest_eigenvector(wide, wide + size, size, first - kBelow * static_cast<double>(size),
                         eigenvector, wide + 5 * size);
    narrow(eigenvector, size, half, vector);
    for (Index lane = 0; lane < kPackWidth; ++lane) second[half * kPackWidth + lane] = next[lane];
  }
  apply_reflections(a, size, taus, vector);
  double* x = vectors_.resize(2 * size);
  for (Index lane = 0; lane < count; ++lane) {
    for (Index i = 0; i < graphs[lane].nodes; ++i) x[i] = static_cast<double>(vector[i][lane]);
    const Quotient quotient = rayleigh_quotient(graphs[lane], words, x, x + size);
    const double apart =
        second[lane] - kFloatPairError * static_cast<double>(size) - quotient.value;
    pairs[lane] = {quotient.value, second[lane],
                   apart > 0.0 ? quotient.square / apart : std::numeric_limits<double>::infinity()};
  }
}

}  // namespace attnscope
