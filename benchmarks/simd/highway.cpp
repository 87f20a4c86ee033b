// SPDX-License-Identifier: MIT
// The lanes of cpp/simd beside Google Highway's, on the two loops that most kernels come down to:
// the sum of p·log p over a row, and Sturm bisection of a pack of tridiagonal matrices. Answers are
// compared before times.
//
//   apt-get install libhwy-dev && rm -f benchmarks/results/highway.txt
//   build="g++ -O3 -std=c++20 -DATTNSCOPE_LANES -Icpp benchmarks/simd/highway.cpp -o /tmp/highway"
//   for isa in v2 "v3 -maes -mpclmul" "v4 -maes -mpclmul"; do
//     $build -march=x86-64-$isa && /tmp/highway >> benchmarks/results/highway.txt
//   done
//
// Highway's AVX2 and AVX-512 need AES and PCLMUL beside the instruction set.
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "linalg/packed_tridiagonal.h"
#include "simd/logarithm.h"

namespace hn = hwy::HWY_NAMESPACE;
using attnscope::Index;
using attnscope::kPackWidth;
using attnscope::Lanes;
using Tag = hn::CappedTag<double, kPackWidth>;
using Vector = hn::VFromD<Tag>;

namespace {

const Tag d;
constexpr Index kTokens = 128;
constexpr Index kEntries = 4096;

double sum_of_logs(const double* x) {
  Lanes even{}, odd{};
  for (Index i = 0; i < kEntries; i += 2 * kPackWidth) {
    const Lanes a = *reinterpret_cast<const Lanes*>(x + i);
    const Lanes b = *reinterpret_cast<const Lanes*>(x + i + kPackWidth);
    even = attnscope::multiply_add(a, attnscope::bounded_log(a), even);
    odd = attnscope::multiply_add(b, attnscope::bounded_log(b), odd);
  }
  even += odd;
  double sum = 0;
  for (Index lane = 0; lane < kPackWidth; ++lane) sum += even[lane];
  return sum;
}

double sum_of_logs_highway(const double* x) {
  Vector even = hn::Zero(d), odd = hn::Zero(d);
  for (Index i = 0; i < kEntries; i += 2 * kPackWidth) {
    const Vector a = hn::Load(d, x + i), b = hn::Load(d, x + i + kPackWidth);
    even = hn::MulAdd(a, hn::Log(d, a), even);
    odd = hn::MulAdd(b, hn::Log(d, b), odd);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(even, odd)));
}

// `attnscope::SturmMinors` in Highway's words.
struct Minors {
  Vector p, q, changes;

  explicit Minors(Vector pivot) : p(pivot), q(hn::Set(d, 1.0)), changes(hn::Zero(d)) { settle(); }
  void step(Vector pivot, Vector square) {
    const Vector next = hn::Sub(hn::Mul(pivot, p), hn::Mul(square, q));
    q = p;
    p = next;
    settle();
  }
  void rescale() {
    const hn::RebindToSigned<Tag> whole;
    const Vector size = hn::Max(hn::Abs(p), hn::Abs(q));
    const auto exponent = hn::And(hn::BitCast(whole, size), hn::Set(whole, 0x7ffLL << 52));
    const Vector scale = hn::BitCast(d, hn::Sub(hn::Set(whole, 2046LL << 52), exponent));
    p = hn::Mul(p, scale);
    q = hn::Mul(q, scale);
  }
  void settle() {
    p = hn::IfThenElse(hn::Eq(p, hn::Zero(d)), hn::Mul(hn::Set(d, 1e-20), q), p);
    const hn::RebindToSigned<Tag> whole;
    const auto differ =
        hn::Lt(hn::Xor(hn::BitCast(whole, p), hn::BitCast(whole, q)), hn::Zero(whole));
    changes = hn::Add(changes, hn::IfThenElseZero(hn::RebindMask(d, differ), hn::Set(d, 1.0)));
  }
};

double second_smallest(double* diagonal, double* beside) {
  Lanes first, second;
  attnscope::two_smallest_eigenvalues(reinterpret_cast<Lanes*>(diagonal),
                                      reinterpret_cast<Lanes*>(beside), kTokens,
                                      attnscope::broadcast(4.0), first, second);
  return second[0];
}

double second_smallest_highway(double* diagonal, double* beside) {
  const double unit = 1.0 / kTokens;
  const auto at = [](double* from, Index i) { return hn::Load(d, from + i * kPackWidth); };
  for (Index i = 0; i < kTokens; ++i) {
    hn::Store(hn::Mul(at(diagonal, i), hn::Set(d, unit)), d, diagonal + i * kPackWidth);
  }
  for (Index i = 0; i + 1 < kTokens; ++i) {
    const Vector square = hn::Mul(at(beside, i), at(beside, i));
    hn::Store(hn::Mul(square, hn::Set(d, unit * unit)), d, beside + i * kPackWidth);
  }
  const Vector half = hn::Set(d, 0.5);
  Vector low1 = hn::Zero(d), low2 = low1, high1 = hn::Set(d, 4.0 * unit), high2 = high1;
  for (int round = 0; round < 52; ++round) {
    const Vector x1 = hn::Mul(half, hn::Add(low1, high1)), x2 = hn::Mul(half, hn::Add(low2, high2));
    Minors minors1(hn::Sub(at(diagonal, 0), x1)), minors2(hn::Sub(at(diagonal, 0), x2));
    for (Index begin = 1; begin < kTokens; begin += 8) {
      for (Index i = begin; i < std::min<Index>(begin + 8, kTokens); ++i) {
        minors1.step(hn::Sub(at(diagonal, i), x1), at(beside, i - 1));
        minors2.step(hn::Sub(at(diagonal, i), x2), at(beside, i - 1));
      }
      minors1.rescale();
      minors2.rescale();
    }
    const auto above1 = hn::Ge(minors1.changes, hn::Set(d, 1.0));
    const auto above2 = hn::Ge(minors2.changes, hn::Set(d, 2.0));
    high1 = hn::IfThenElse(above1, x1, high1);
    low1 = hn::IfThenElse(above1, low1, x1);
    high2 = hn::IfThenElse(above2, x2, high2);
    low2 = hn::IfThenElse(above2, low2, x2);
  }
  const Vector first = hn::Add(low1, high1), second = hn::Add(low2, high2);
  return hn::GetLane(hn::Mul(hn::Max(first, second), hn::Set(d, 0.5 * kTokens)));
}

template <class Function>
double shortest(Function function) {
  double seconds = 1e9;
  for (int repeat = 0; repeat < 200; ++repeat) {
    const auto begin = std::chrono::steady_clock::now();
    function();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    seconds = std::min(seconds, taken.count());
  }
  return seconds;
}

template <class Ours, class Theirs>
void compare(const char* name, Ours ours, Theirs theirs) {
  const double a = ours(), b = theirs();
  if (!(std::abs(a - b) <= 1e-12 * std::abs(a))) {
    std::printf("%s: %.17g here, %.17g with Highway\n", name, a, b);
    std::exit(1);
  }
  volatile double kept;
  const double own = shortest([&] { kept = ours(); });
  const double other = shortest([&] { kept = theirs(); });
  std::printf("%d lanes, %-24s %7.2f us, Highway %7.2f us, ratio %.2f\n", int(kPackWidth), name,
              own * 1e6, other * 1e6, other / own);
}

}  // namespace

int main() {
  std::mt19937 generator(0);
  std::uniform_real_distribution<double> uniform(1e-6, 1.0);
  alignas(64) static double row[kEntries];
  alignas(64) static double diagonal[kTokens * kPackWidth], beside[kTokens * kPackWidth];
  std::vector<double> first(kTokens * kPackWidth), second(kTokens * kPackWidth);
  for (double& entry : row) entry = uniform(generator);
  for (double& entry : first) entry = 2 * uniform(generator);
  for (double& entry : second) entry = uniform(generator);
  const auto from_fresh = [&](auto search) {
    return [&, search] {
      std::copy(first.begin(), first.end(), diagonal);
      std::copy(second.begin(), second.end(), beside);
      return search(diagonal, beside);
    };
  };
  compare(
      "sum of p log p", [&] { return sum_of_logs(row); }, [&] { return sum_of_logs_highway(row); });
  compare("Sturm bisection", from_fresh(second_smallest), from_fresh(second_smallest_highway));
}
