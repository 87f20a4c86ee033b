// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "bytes.h"
#include "matrix/matrix_view.h"

// Bytes read as inputs of kernels: sizes, element types, strides, masks and values, hostile ones
// included.
namespace attnscope::fuzz {

// How one matrix is filled.
inline std::vector<double> read_values(Bytes& bytes, Index n) {
  std::vector<double> a(static_cast<std::size_t>(n * n), 0.0);
  const auto at = [&](Index i, Index j) -> double& {
    return a[static_cast<std::size_t>(i * n + j)];
  };
  const int family = bytes.byte() % 13;
  const bool causal = bytes.flag();
  const auto softmax = [&](double sharpness) {
    for (Index i = 0; i < n; ++i) {
      double sum = 0.0;
      for (Index j = 0; j < (causal ? i + 1 : n); ++j) {
        sum += at(i, j) = std::exp2(sharpness * (bytes.unit() - 0.5));
      }
      for (Index j = 0; j < n; ++j) at(i, j) /= sum;
    }
  };
  switch (family) {
    case 0:  // any bit pattern
      for (double& x : a) x = bytes.bits<double>();
      break;
    case 1:
      for (double& x : a) x = special_value(bytes);
      break;
    case 2:
    case 3:
      softmax(1.0 + bytes.byte() / 4.0);
      break;
    case 4: {  // ties
      const Index levels = bytes.between(1, 6);
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < (causal ? i + 1 : n); ++j) {
          at(i, j) = double(bytes.byte() % (levels + 1)) / double(levels);
        }
      }
      break;
    }
    case 5:  // one key a query
      for (Index i = 0; i < n; ++i) at(i, bytes.between(0, causal ? i : n - 1)) = 1.0;
      break;
    case 6:  // a permutation, or the identity
      for (Index i = 0, shift = causal ? 0 : bytes.between(0, n - 1); i < n; ++i) {
        at(i, (i + shift) % n) = 1.0;
      }
      break;
    case 7:  // uniform
      for (Index i = 0; i < n; ++i) {
        const Index end = causal ? i + 1 : n;
        for (Index j = 0; j < end; ++j) at(i, j) = 1.0 / double(end);
      }
      break;
    case 8: {  // all rows alike
      softmax(6.0);
      for (Index i = 0; i + 1 < n; ++i) {
        for (Index j = 0; j < n; ++j) at(i, j) = at(n - 1, j);
      }
      break;
    }
    case 9: {  // islands, joined by a thread or not at all
      softmax(4.0);
      const Index cut = bytes.between(0, n);
      const double thread = bytes.flag() ? 0.0 : std::exp2(-double(bytes.byte()));
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < n; ++j) {
          if ((i < cut) != (j < cut)) at(i, j) = std::min(at(i, j), thread);
        }
      }
      break;
    }
    case 10:  // powers of two over the whole range of each type
      for (Index i = 0; i < n; ++i) {
        for (Index j = 0; j < (causal ? i + 1 : n); ++j) {
          at(i, j) = std::ldexp(1.0, -int(bytes.byte()) * (bytes.flag() ? 4 : 1));
        }
      }
      break;
    case 11:  // large, of both signs
      for (double& x : a) x = std::ldexp(bytes.unit() - 0.5, int(bytes.byte()) * 4);
      break;
    default:  // a star, or nothing
      for (Index i = 0; i < n; ++i) at(i, 0) = causal ? 1.0 : 0.0;
      break;
  }
  if (bytes.byte() < 64) {
    for (Index k = bytes.between(1, 3); k > 0; --k) {
      at(bytes.between(0, n - 1), bytes.between(0, n - 1)) = special_value(bytes);
    }
  }
  return a;
}

// One matrix in memory that ends where its last entry does, in one of several layouts.
template <class Scalar>
class Map {
 public:
  Map(Bytes& bytes, Index n) : n_(n) {
    const std::vector<double> values = read_values(bytes, n);
    Index row = n;
    Index column = 1;
    switch (bytes.byte() % 6) {
      case 1:  // transposed
        row = 1;
        column = n;
        break;
      case 2:  // rows apart, as in a slice
        row = n + bytes.between(1, 5);
        break;
      case 3:  // columns apart, as heads last in memory
        column = bytes.between(2, 3);
        row = n * column;
        break;
      case 4:  // one row for all
        row = 0;
        break;
      case 5:  // one number for each row
        column = 0;
        row = 1;
        break;
      default:
        break;
    }
    const Index skipped = bytes.byte() % 3;
    const auto size = static_cast<std::size_t>(skipped + (n - 1) * (row + column) + 1);
    memory_.reset(new Scalar[size]);
    // What lies between the entries is no business of any kernel.
    std::fill_n(memory_.get(), size, static_cast<Scalar>(std::numeric_limits<float>::quiet_NaN()));
    Scalar* data = memory_.get() + skipped;
    for (Index i = 0; i < n; ++i) {
      for (Index j = 0; j < n; ++j) {
        data[i * row + j * column] = narrowed(values[static_cast<std::size_t>(i * n + j)]);
      }
    }
    data_ = data;
    row_ = row;
    column_ = column;
    exact_.resize(n, n);
    for (Index i = 0; i < n; ++i) {
      double sum = 0.0;
      for (Index j = 0; j < n; ++j) {
        const double x = exact_(i, j) = static_cast<double>(data[i * row + j * column]);
        finite_ = finite_ && std::isfinite(x);
        negative_ = negative_ || x < 0.0;
        // Results of such entries neither overflow nor lose all their digits.
        tame_ = tame_ && std::abs(x) <= 1e6 && (x == 0.0 || std::abs(x) >= 1e-30);
        sum += x;
        if (j > i) lower_ = lower_ && x == 0.0;
      }
      attention_ = attention_ && sum <= 1.0 + 2e-2;
    }
    lower_ = lower_ && n >= 2;
    attention_ = attention_ && finite_ && !negative_;
    LAW(all_finite(view()) == finite_, "all_finite says %d", all_finite(view()));
    LAW(is_causal(view()) == lower_, "is_causal says %d", is_causal(view()));
  }

  MatrixView<Scalar> view() const { return matrix_view<Scalar>(data_, n_, row_, column_); }
  double operator()(Index i, Index j) const { return exact_(i, j); }
  const Eigen::MatrixXd& exact() const { return exact_; }
  Index size() const { return n_; }
  bool finite() const { return finite_; }
  bool negative() const { return negative_; }
  bool tame() const { return finite_ && tame_; }
  bool lower() const { return lower_; }
  // Non-negative, and no row sums to more than 1.02.
  bool attention() const { return attention_; }

 private:
  static Scalar narrowed(double x) {
    // Out of range is infinity in every type, without the undefined conversion.
    if constexpr (std::is_same_v<Scalar, double>) {
      return x;
    } else {
      constexpr auto kMax = std::numeric_limits<float>::max();
      const float single = std::isnan(x)       ? std::numeric_limits<float>::quiet_NaN()
                           : x > double(kMax)  ? std::numeric_limits<float>::infinity()
                           : x < -double(kMax) ? -std::numeric_limits<float>::infinity()
                                               : static_cast<float>(x);
      return static_cast<Scalar>(single);
    }
  }

  Index n_;
  Index row_ = 0;
  Index column_ = 0;
  std::unique_ptr<Scalar[]> memory_;
  const Scalar* data_ = nullptr;
  Eigen::MatrixXd exact_;
  bool finite_ = true;
  bool negative_ = false;
  bool tame_ = true;
  bool lower_ = true;
  bool attention_ = true;
};

// What each query sees: a rule, or a mask of its own strides.
class Seen {
 public:
  template <class Scalar>
  Seen(Bytes& bytes, const Map<Scalar>& map) : Seen(bytes, map, bytes.byte() % 4) {}
  // The heads of a layer are seen by one rule; only "auto" and masks differ from head to head.
  template <class Scalar>
  Seen(Bytes& bytes, const Map<Scalar>& map, int rule) {
    const Index n = map.size();
    switch (rule) {
      case 0:
        support_ = auto_support(map.view());
        break;
      case 1:
        support_.kind = Support::Kind::causal;
        break;
      case 2:
        support_.kind = Support::Kind::full;
        break;
      default: {
        support_.kind = Support::Kind::mask;
        const bool transposed = bytes.flag();
        support_.mask_row_stride = transposed ? 1 : n;
        support_.mask_column_stride = transposed ? n : 1;
        mask_.reset(new bool[static_cast<std::size_t>(n * n)]);
        const int share = bytes.byte();
        for (Index k = 0; k < n * n; ++k)
          mask_[static_cast<std::size_t>(k)] = bytes.byte() <= share;
        support_.mask = mask_.get();
      }
    }
  }
  const Support& support() const { return support_; }
  bool operator()(Index query, Index key) const { return support_.visible(query, key); }
  Index count(Index query, Index n) const {
    Index count = 0;
    for (Index j = 0; j < n; ++j) count += support_.visible(query, j) ? 1 : 0;
    return count;
  }

 private:
  Support support_;
  std::unique_ptr<bool[]> mask_;
};

// Marked tokens: no std::vector<bool>, whose memory is not bool.
class Marked {
 public:
  Marked(Bytes& bytes, Index n) : stride_(bytes.flag() ? 1 : 2), none_(bytes.byte() < 32) {
    flags_.reset(new bool[static_cast<std::size_t>(n * stride_)]());
    const int share = bytes.byte();
    for (Index j = 0; j < n; ++j)
      flags_[static_cast<std::size_t>(j * stride_)] = bytes.byte() < share;
  }
  const bool* data() const { return none_ ? nullptr : flags_.get(); }
  const bool* all() const { return flags_.get(); }
  Index stride() const { return stride_; }

 private:
  Index stride_;
  bool none_;
  std::unique_ptr<bool[]> flags_;
};

// Results in memory of their own, filled with a value that no kernel writes.
template <class T>
class Output {
 public:
  explicit Output(Index size)
      : size_(size), data_(new T[static_cast<std::size_t>(std::max<Index>(size, 1))]) {
    std::memset(data_.get(), 0x5b, static_cast<std::size_t>(size) * sizeof(T));
  }
  T* data() { return data_.get(); }
  T operator[](Index k) const { return data_[static_cast<std::size_t>(k)]; }
  bool written(Index k) const {
    unsigned char raw[sizeof(T)];
    std::memcpy(raw, data_.get() + k, sizeof(T));
    return std::any_of(raw, raw + sizeof(T), [](unsigned char part) { return part != 0x5b; });
  }
  bool all_written() const {
    for (Index k = 0; k < size_; ++k) {
      if (!written(k)) return false;
    }
    return true;
  }
  bool same_bits(const Output& other) const {
    return std::memcmp(data_.get(), other.data_.get(),
                       static_cast<std::size_t>(size_) * sizeof(T)) == 0;
  }

 private:
  Index size_;
  std::unique_ptr<T[]> data_;
};

inline bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

// Both NaN, the same infinity, or as near as said.
inline bool near(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::abs(a - b) <= tolerance;
}

}  // namespace attnscope::fuzz

// Runs target<Scalar>(bytes) for the element type that the first byte names.
#define ATTNSCOPE_FUZZ_TARGET(target)                                                 \
  extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
    attnscope::fuzz::Bytes bytes(data, size);                                         \
    switch (bytes.byte() % 4) {                                                       \
      case 0:                                                                         \
        target<float>(bytes);                                                         \
        break;                                                                        \
      case 1:                                                                         \
        target<double>(bytes);                                                        \
        break;                                                                        \
      case 2:                                                                         \
        target<Eigen::half>(bytes);                                                   \
        break;                                                                        \
      default:                                                                        \
        target<Eigen::bfloat16>(bytes);                                               \
    }                                                                                 \
    return 0;                                                                         \
  }
