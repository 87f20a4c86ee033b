// SPDX-License-Identifier: MIT
#include "kernels/information/sinks.h"

#include <pybind11/stl.h>

#include <cmath>

#include "bindings/batched.h"
#include "bindings/options.h"
#include "matrix/columns/column_sums.h"
#include "matrix/row_groups/fast_row_statistics.h"

namespace attnscope {
namespace {

// Entries in a block of maps that are read one by one for their columns. On one thread 40 maps of
// 64 tokens leave its second-level cache in float64: a second one, which costs 2 to 4 µs where it
// has just worked, brings a call from 24 µs to 19. In the shorter types it brings nothing.
Index entries_of_columns(const Batch& batch) {
  return batch.dtype == Dtype::float64 ? kBlockEntriesOfSums / 2 : kBlockEntriesOfSums;
}

// The shares of heads that lie together, of which few entries are needed once a layer is known to
// be finite, and the numbers under uniform attention. Returns how many matrices are not finite.
Index shares_of_layers(const Batch& batch, const SupportBatch& supports, const SinkRequest& request,
                       double* shares, double* uniforms) {
  const Index heads = batch.sizes.back();
  const Index layers = batch.count / heads;
  std::vector<SinkWorkspace> workspaces(worker_count(layers));
  std::atomic<Index> non_finite{0};
  const Index block = std::max<Index>(1, block_size(batch, 1, kBlockEntriesOfSums) / heads);
  run_blocks(layers, block, [&](Index begin, Index end, int worker) {
    visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
      for (Index layer = begin; layer < end; ++layer) {
        const Index first = layer * heads;
        Support support = supports.given(first);
        const bool together =
            read_heads_together(rows_of_layer(batch, data, layer, 0, batch.queries), heads,
                                support.shift, supports.automatic, support.kind);
        for (Index index = first; index < first + heads; ++index) {
          const MatrixView<Scalar> view = view_of(batch, data, index);
          SinkAnswers answers;
          if (together) {
            answers.share = sink_share(view, support, request.first, request.queries);
          } else {
            Support of_map = supports.given(index);
            if (!sink_statistics(view, supports.automatic, of_map, request, answers,
                                 workspaces[worker])) {
              non_finite.fetch_add(1, std::memory_order_relaxed);
              continue;
            }
          }
          shares[index] = answers.share.share;
          uniforms[index] = answers.share.uniform;
        }
      }
    });
  });
  return non_finite.load();
}

// Incoming attention of such heads, whose layers are matrices of their own: keys are shared out, so
// that workers have parts of a single layer too. Returns how many matrices are not finite.
Index incoming_of_layers(const Batch& batch, bool find_support, Index shift, double* incoming) {
  const Index heads = batch.sizes.back();
  const Index layers = batch.count / heads;
  const Index columns = batch.n * heads;
  const Index parts = std::clamp<Index>(batch.queries * columns / kBlockEntriesOfSums, 1,
                                        std::max<Index>(1, batch.n / 16));
  const Index keys = (batch.n + parts - 1) / parts;
  AlignedBuffer buffer;
  double* sums = buffer.resize(layers * columns);
  std::vector<std::atomic<bool>> differs(layers);
  std::vector<SinkWorkspace> workspaces(worker_count(layers));
  std::atomic<Index> non_finite{0};
  const Index of_parts =
      std::max<Index>(1, kBlockEntriesOfSums / std::max<Index>(1, batch.queries * keys * heads));
  visit_scalar(batch, [&]<class Scalar>(const Scalar* data) {
    const auto layer_at = [&](Index layer, Index key, Index count) {
      return matrix_view(data + batch.offset(layer * heads) + key * heads, batch.queries,
                         count * heads, batch.row_stride, Index{1});
    };
    run_blocks(layers * parts, of_parts, [&](Index begin, Index end, int) {
      for (Index at = begin; at < end; ++at) {
        const Index layer = at / parts;
        const Index key = std::min(at % parts * keys, batch.n);
        const Index count = std::min(keys, batch.n - key);
        if (count == 0) continue;
        const bool causal =
            sum_columns(layer_at(layer, key, count), heads, shift - key,
                        find_support && batch.n >= 2, sums + layer * columns + key * heads);
        if (!causal) differs[layer].store(true, std::memory_order_relaxed);
      }
    });
    run_blocks(layers, of_parts, [&](Index begin, Index end, int worker) {
      for (Index layer = begin; layer < end; ++layer) {
        non_finite.fetch_add(
            incoming_of_heads(layer_at(layer, 0, batch.n), heads, shift, find_support,
                              find_support && !differs[layer].load(), sums + layer * columns,
                              incoming + layer * columns, workspaces[worker]),
            std::memory_order_relaxed);
      }
    });
  });
  return non_finite.load();
}

// Whether `sum_columns` reads the layers of a batch, in parts of sixteen keys too.
bool sums_layers(const Batch& batch) {
  bool is_summable = false;
  visit_scalar(batch, [&](const auto* data) {
    is_summable = has_summable_columns(
        matrix_view(data, batch.queries, std::min<Index>(batch.n, 16) * batch.sizes.back(),
                    batch.row_stride, Index{1}));
  });
  return is_summable;
}

// Whether key `key` of each matrix receives more than `epsilon`, to `rates`, from what keys
// receive. Under `fast` exact sums decide where the error of the others does not; returns how many
// they did.
Index rates_of(const Batch& batch, const SupportBatch& supports, double epsilon, Index key,
               bool fast, const double* incoming, bool* rates) {
  Index decided = 0;
  SinkWorkspace workspace;
  std::vector<double> exact(fast ? batch.n : 0);
  for (Index index = 0; index < batch.count; ++index) {
    double received = key < batch.n ? incoming[index * batch.n + key] : kNaN;
    if (fast && std::abs(received - epsilon) <= kErrorOfFastSums * epsilon) {
      visit_matrix(batch, index, [&](const auto& view, Index) {
        SinkAnswers answers;
        answers.incoming = exact.data();
        Support of_map = supports.given(index);
        sink_statistics(view, supports.automatic, of_map, SinkRequest{}, answers, workspace);
      });
      received = exact[key];
      ++decided;
    }
    rates[index] = received > epsilon;
  }
  return decided;
}

// (incoming, entropy, position, share, uniform share, top mass, rate, non_finite), None for what is
// not asked for; a rate, of (epsilon, key), comes with what keys receive.
py::tuple sink_statistics_of(Argument attention, Argument lengths, Argument support, bool incoming,
                             bool entropy, std::optional<double> min_visibility,
                             std::optional<std::pair<Index, Index>> first_and_queries, Index top,
                             std::optional<std::pair<double, Index>> rate,
                             const std::string& precision) {
  incoming = incoming || rate.has_value();
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const auto [first, queries] = first_and_queries.value_or(std::pair<Index, Index>(0, 0));
  const bool fast = precision_from(precision) == Precision::fast;
  const SinkRequest request{
      min_visibility.has_value(), min_visibility.value_or(0.0), first, queries, top, fast};
  const auto numbers = [&](bool is_asked, const std::vector<Index>& trailing) {
    return is_asked ? make_result(batch.sizes, trailing, kNaN) : Result<double>{py::none()};
  };
  const bool one_question = !entropy && !request.position && top == 0 && supports.data == nullptr &&
                            heads_lie_together(batch);
  // Every map writes all of its keys where none is shorter than the others.
  const bool are_whole = lengths.is_none() && !one_question;
  const Result<double> incomings = incoming && are_whole
                                       ? make_empty<double>(batch.sizes, {batch.n})
                                       : numbers(incoming, {batch.n});
  const Result<double> entropies = numbers(entropy, {batch.queries});
  const Result<double> shares = numbers(request.first > 0, {});
  const Result<double> uniforms = numbers(request.first > 0, {});
  const Result<double> tops = numbers(top > 0, {});
  Result<std::int64_t> positions{py::none()};
  if (request.position) positions = make_result(batch.sizes, {}, std::int64_t{-1});
  std::atomic<Index> fallbacks{0};
  const auto answer = [&](Index non_finite) {
    Result<bool> rates{py::none()};
    Index decided = 0;
    if (rate) {
      rates = make_empty<bool>(batch.sizes, {});
      decided =
          rates_of(batch, supports, rate->first, rate->second, fast, incomings.data, rates.data);
    }
    return with_fallbacks(
        py::make_tuple(incomings.tensor, entropies.tensor, positions.tensor, shares.tensor,
                       uniforms.tensor, tops.tensor, rates.tensor, non_finite),
        fast, fallbacks.load() + decided);
  };
  if (one_question && request.first > 0 && !incoming)
    return answer(shares_of_layers(batch, supports, request, shares.data, uniforms.data));
  const bool by_entries = supports.automatic || supports.rule.kind == Support::Kind::full;
  if (one_question && request.first == 0 && incoming && by_entries && sums_layers(batch))
    return answer(
        incoming_of_layers(batch, supports.automatic, supports.given(0).shift, incomings.data));
  const Index non_finite = per_matrix_checked_by_kernel<SinkWorkspace>(
      batch,
      [&](const auto& view, Index index, auto& workspace) {
        SinkAnswers answers;
        if (incoming) answers.incoming = incomings.data + index * batch.n;
        if (entropy) answers.entropy = entropies.data + index * batch.queries;
        Support of_map = supports.given(index);
        if (!sink_statistics(view, supports.automatic, of_map, request, answers, workspace)) {
          if (incoming && are_whole) std::fill_n(answers.incoming, batch.n, kNaN);
          return false;
        }
        if (request.position) positions.data[index] = answers.position;
        if (answers.fell_back) fallbacks.fetch_add(1, std::memory_order_relaxed);
        if (request.first > 0) {
          shares.data[index] = answers.share.share;
          uniforms.data[index] = answers.share.uniform;
        }
        if (top > 0) tops.data[index] = answers.top_mass;
        return true;
      },
      block_size(batch, 1, entropy ? kBlockEntriesOfLogarithms : entries_of_columns(batch)));
  return answer(non_finite);
}

py::tuple tokens(Argument attention, Argument lengths, Argument support, std::optional<double> tau,
                 double gamma, double min_visibility) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const SinkRule rule{tau, gamma, min_visibility};
  return result_per_matrix<SinkWorkspace>(
      batch, {batch.n}, false, [&](const auto& view, Index index, bool* out, auto& workspace) {
        sink_tokens(view, supports.of(index, view), rule, out, workspace);
      });
}

// (mass, expected, variance, largest, uniform, queries, non_finite), each [..., n]; past a map's
// own length and of a map that is not finite NaN, and 0 queries.
py::tuple far(Argument attention, Argument lengths, Argument support) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  Result<double> numbers[5];
  for (auto& result : numbers) result = make_result(batch.sizes, {batch.n}, kNaN);
  const Result<std::int64_t> queries = make_result(batch.sizes, {batch.n}, std::int64_t{0});
  const Index non_finite =
      per_matrix<SinkWorkspace>(batch, [&](const auto& view, Index index, auto& workspace) {
        const Index at = index * batch.n;
        const FarAttention out{numbers[0].data + at, numbers[1].data + at, numbers[2].data + at,
                               numbers[3].data + at, numbers[4].data + at, queries.data + at};
        far_attention(view, supports.of(index, view), out, workspace);
      });
  return py::make_tuple(numbers[0].tensor, numbers[1].tensor, numbers[2].tensor, numbers[3].tensor,
                        numbers[4].tensor, queries.tensor, non_finite);
}

}  // namespace

void bind_sinks(py::module_& module) {
  define(module, "sink_statistics", &sink_statistics_of, "attention", "lengths", "support",
         "incoming", "entropy", "min_visibility", "first_and_queries", "top", "rate",
         precision_argument());
  define(module, "sink_tokens", &tokens, "attention", "lengths", "support", "tau", "gamma",
         "min_visibility");
  define(module, "far_attention", &far, "attention", "lengths", "support");
}

}  // namespace attnscope
