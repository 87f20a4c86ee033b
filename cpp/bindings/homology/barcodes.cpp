// SPDX-License-Identifier: MIT
#include "homology/barcodes.h"

#include "bindings/exchange.h"
#include "bindings/tensors.h"

namespace attnscope {
namespace {

// The bars of a batch, those of matrix i from offsets[i] to offsets[i + 1].
class BarBatch {
 public:
  BarBatch(Argument birth, Argument death, Argument dimension, Argument offsets)
      : dimensions_(view_array(dimension, "dimension")) {
    const ArrayView ends = view_array(offsets, "offsets");
    const ArrayView births = view_array(birth, "birth");
    if (ends.count() < 1) throw py::value_error("offsets must hold a number or more");
    offsets_ = integers_of(offsets, ends.count());
    count_ = ends.count() - 1;
    const Index bars = births.count();
    birth_ = numbers_of(birth, bars);
    death_ = numbers_of(death, bars);
    if (dimensions_.type() != kInt8Type || !dimensions_.is_contiguous() || !dimensions_.on_cpu() ||
        dimensions_.count() != bars) {
      throw py::value_error("dimension must be a contiguous int8 CPU tensor of one number a bar");
    }
    dimension_ = static_cast<const std::int8_t*>(dimensions_.data());
    // Whoever makes bars by hand must not make this read past them.
    bool are_places = offsets_[0] == 0 && offsets_[count_] == bars;
    for (Index i = 0; i < count_; ++i) are_places &= offsets_[i] <= offsets_[i + 1];
    if (!are_places) {
      throw py::value_error("offsets must rise from 0 to the number of bars, " +
                            std::to_string(bars));
    }
    for (Index k = 0; k < bars; ++k) {
      if (dimension_[k] < 0 || dimension_[k] >= kBarDimensions) {
        throw py::value_error("dimension must be 0 or 1, got " + std::to_string(dimension_[k]));
      }
    }
  }

  Index count() const { return count_; }
  BarSpans of(Index i) const {
    const Index begin = offsets_[i];
    const auto size = static_cast<std::size_t>(offsets_[i + 1] - begin);
    return {{birth_ + begin, size}, {death_ + begin, size}, {dimension_ + begin, size}};
  }

 private:
  ArrayView dimensions_;
  const double* birth_;
  const double* death_;
  const std::int8_t* dimension_;
  const std::int64_t* offsets_;
  Index count_;
};

// The fields of BarSums, each [matrices, dimensions]; −1 and NaN for a matrix without bars, which
// was not finite.
py::tuple sums_of_bars(Argument birth, Argument death, Argument dimension, Argument offsets) {
  const BarBatch bars(birth, death, dimension, offsets);
  using S = BarSums;
  const Fields fields({bars.count()}, {kBarDimensions}, S{-1, -1, kNaN, kNaN}, &S::count,
                      &S::finite, &S::total, &S::longest);
  for (Index i = 0; i < bars.count(); ++i) {
    const BarSpans of_matrix = bars.of(i);
    if (of_matrix.birth.empty()) continue;
    BarSums sums[kBarDimensions];
    bar_sums(of_matrix, sums);
    for (int k = 0; k < kBarDimensions; ++k) fields.set(i * kBarDimensions + k, sums[k]);
  }
  return fields.tensors();
}

// [matrices, dimensions]; NaN for a matrix without bars.
py::object entropies_of_bars(Argument birth, Argument death, Argument dimension, Argument offsets) {
  const BarBatch bars(birth, death, dimension, offsets);
  const auto result = make_result({bars.count()}, {kBarDimensions}, kNaN);
  for (Index i = 0; i < bars.count(); ++i) {
    const BarSpans of_matrix = bars.of(i);
    if (of_matrix.birth.empty()) continue;
    double entropies[kBarDimensions];
    bar_entropies(of_matrix, entropies);
    std::copy(std::begin(entropies), std::end(entropies), result.data + i * kBarDimensions);
  }
  return result.tensor;
}

// [matrices, scales, dimensions]; −1 for a matrix without bars.
py::object alive_bars(Argument birth, Argument death, Argument dimension, Argument offsets,
                      Argument scales, Index scale_count) {
  const BarBatch bars(birth, death, dimension, offsets);
  const std::span<const double> levels(numbers_of(scales, scale_count),
                                       static_cast<std::size_t>(scale_count));
  const auto counts = make_result({bars.count()}, {scale_count, kBarDimensions}, std::int64_t{-1});
  for (Index i = 0; i < bars.count(); ++i) {
    const BarSpans of_matrix = bars.of(i);
    if (of_matrix.birth.empty()) continue;
    count_alive(of_matrix, levels, counts.data + i * scale_count * kBarDimensions);
  }
  return counts.tensor;
}

}  // namespace

void bind_barcodes(py::module_& module) {
  define(module, "bar_sums", &sums_of_bars, "birth", "death", "dimension", "offsets");
  define(module, "bar_entropies", &entropies_of_bars, "birth", "death", "dimension", "offsets");
  define(module, "count_alive", &alive_bars, "birth", "death", "dimension", "offsets", "scales",
         "scale_count");
}

}  // namespace attnscope
