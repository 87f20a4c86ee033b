// SPDX-License-Identifier: MIT
#include "kernels/signals/locality.h"

#include <algorithm>

#include "bindings/batched.h"
#include "bindings/options.h"

namespace attnscope {
namespace {

// The ratios of heads that lie together and whose support is found in their entries, from sums of
// their layers. Rows are shared out in parts that depend on the shape alone, so that workers have
// parts of a single layer too. Returns how many matrices are not finite.
Index ratios_of_layers(const Batch& batch, Index window, double* ratios) {
  const Index heads = batch.sizes.back();
  const Index layers = batch.count / heads;
  const Index of_row = std::max<Index>(1, batch.n * heads);
  const Index rows = std::max<Index>(1, kBlockEntriesOfSums / of_row);
  const Index parts = (batch.queries + rows - 1) / rows;
  const Index layers_in_block = std::max<Index>(1, rows / std::max<Index>(1, batch.queries));
  const Index place = batch.places(0).shift;
  AlignedBuffer buffer;
  double* const sums = buffer.resize(2 * layers * parts * heads);
  Index non_finite = 0;
  visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
    run_blocks(layers * parts, layers_in_block, [&](Index begin, Index end, int) {
      for (Index at = begin; at < end; ++at) {
        const Index first = at % parts * rows;
        const Index last = std::min(first + rows, batch.queries);
        double* const near = sums + 2 * at * heads;
        near_and_far_sums(rows_of_layer(batch, data, at / parts, first, last), heads, place + first,
                          window, {near, near + heads});
      }
    });
    for (Index index = 0; index < batch.count && parts > 0; ++index) {
      const double* of_part = sums + 2 * (index / heads * parts * heads) + index % heads;
      double near = 0.0;
      double far = 0.0;
      for (Index part = 0; part < parts; ++part, of_part += 2 * heads) {
        near += of_part[0];
        far += of_part[heads];
      }
      // A sum of finite float64 numbers can overflow, one of the shorter types cannot.
      if ((near + far) * 0.0 == 0.0 ||
          (std::is_same_v<Scalar, double> && all_finite(view_of(batch, data, index)))) {
        ratios[index] = near / far;
      } else {
        ++non_finite;
      }
    }
  });
  return non_finite;
}

// A `window` below 1 is a fraction of each map's own number of keys.
py::tuple ratio(Argument attention, Argument lengths, Argument support, double window,
                bool drop_first, const std::string& precision) {
  const bool fast = precision_from(precision) == Precision::fast;
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const Result<double> result = make_result(batch.sizes, {}, kNaN);
  // A window beyond the map holds all of it, whatever number an integer ends at. Of a fraction the
  // product's own rounding does not leave a whole number short: 0.7 of 90 keys are 63.
  const auto window_of = [&](Index keys) {
    const auto all = static_cast<double>(keys);
    return static_cast<Index>(window < 1.0 ? window * all + 1e-9 : std::min(window, all));
  };
  if (supports.automatic && !drop_first && heads_lie_together(batch) &&
      are_summed_together(batch.sizes.back())) {
    const Index non_finite = ratios_of_layers(batch, window_of(batch.n), result.data);
    return with_fallbacks(py::make_tuple(result.tensor, non_finite), fast, 0);
  }
  const Index non_finite = per_matrix_checked_by_kernel<RowScratch>(
      batch,
      [&](const auto& view, Index index, auto& scratch) {
        Support of_map = supports.given(index);
        return local_global_ratio(view, supports.automatic, of_map, window_of(view.cols()),
                                  drop_first, result.data[index], scratch, fast);
      },
      block_size(batch, 1, kBlockEntriesOfSums));
  return with_fallbacks(py::make_tuple(result.tensor, non_finite), fast, 0);
}

}  // namespace

void bind_locality(py::module_& module) {
  define(module, "local_global_ratio", &ratio, "attention", "lengths", "support", "window",
         "drop_first", precision_argument());
}

}  // namespace attnscope
