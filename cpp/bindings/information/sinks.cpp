// SPDX-License-Identifier: MIT
#include "kernels/information/sinks.h"

#include <pybind11/stl.h>

#include "bindings/batched.h"

namespace attnscope {
namespace {

// Whether the heads of a layer are the fastest axis, without gaps, and all maps are whole.
bool heads_lie_together(const Batch& batch) {
  return !batch.sizes.empty() && batch.count > 0 && batch.strides.back() == 1 &&
         batch.sizes.back() > 1 && batch.column_stride == batch.sizes.back() &&
         batch.row_stride >= batch.n * batch.column_stride && batch.lengths == nullptr &&
         batch.query_lengths == nullptr && batch.positions == nullptr;
}

// The shares of such heads, of which few entries are needed once a layer is known to be finite, and
// the numbers under uniform attention. Returns how many matrices are not finite.
Index shares_of_layers(const Batch& batch, const SupportBatch& supports, const SinkRequest& asked,
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
            read_heads_together(matrix_view(data + batch.offset(first), batch.queries,
                                            batch.n * heads, batch.row_stride, Index{1}),
                                heads, support.shift, supports.automatic, support.kind);
        for (Index index = first; index < first + heads; ++index) {
          const MatrixView<Scalar> view = view_of(batch, data, index);
          SinkAnswers answers;
          if (together) {
            answers.share = sink_share(view, support, asked.first, asked.queries);
          } else {
            Support own = supports.given(index);
            if (!sink_statistics(view, supports.automatic, own, asked, answers,
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

// (incoming, entropy, position, share, uniform share, top mass, non_finite), None for what is not
// asked for.
py::tuple sink_statistics_of(Argument attention, Argument lengths, Argument support, bool incoming,
                             bool entropy, std::optional<double> min_visibility,
                             std::optional<std::pair<Index, Index>> first_and_queries, Index top) {
  const Batch batch = make_rectangles(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const auto [first, queries] = first_and_queries.value_or(std::pair<Index, Index>(0, 0));
  const SinkRequest asked{min_visibility.has_value(), min_visibility.value_or(0.0), first, queries,
                          top};
  const auto numbers = [&](bool wanted, const std::vector<Index>& trailing) {
    return wanted ? make_result(batch.sizes, trailing, kNaN) : Result<double>{py::none()};
  };
  const Result<double> incomings = numbers(incoming, {batch.n});
  const Result<double> entropies = numbers(entropy, {batch.queries});
  const Result<double> shares = numbers(asked.first > 0, {});
  const Result<double> uniforms = numbers(asked.first > 0, {});
  const Result<double> tops = numbers(top > 0, {});
  Result<std::int64_t> positions{py::none()};
  if (asked.position) positions = make_result(batch.sizes, {}, std::int64_t{-1});
  if (asked.first > 0 && !incoming && !entropy && !asked.position && top == 0 &&
      heads_lie_together(batch) && supports.data == nullptr) {
    const Index non_finite = shares_of_layers(batch, supports, asked, shares.data, uniforms.data);
    return py::make_tuple(incomings.tensor, entropies.tensor, positions.tensor, shares.tensor,
                          uniforms.tensor, tops.tensor, non_finite);
  }
  const Index non_finite = per_matrix_checked_by_kernel<SinkWorkspace>(
      batch,
      [&](const auto& view, Index index, auto& workspace) {
        SinkAnswers answers;
        if (incoming) answers.incoming = incomings.data + index * batch.n;
        if (entropy) answers.entropy = entropies.data + index * batch.queries;
        Support own = supports.given(index);
        if (!sink_statistics(view, supports.automatic, own, asked, answers, workspace))
          return false;
        if (asked.position) positions.data[index] = answers.position;
        if (asked.first > 0) {
          shares.data[index] = answers.share.share;
          uniforms.data[index] = answers.share.uniform;
        }
        if (top > 0) tops.data[index] = answers.top_mass;
        return true;
      },
      block_size(batch, 1, entropy ? kBlockEntries : kBlockEntriesOfSums));
  return py::make_tuple(incomings.tensor, entropies.tensor, positions.tensor, shares.tensor,
                        uniforms.tensor, tops.tensor, non_finite);
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
  for (auto& one : numbers) one = make_result(batch.sizes, {batch.n}, kNaN);
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
         "incoming", "entropy", "min_visibility", "first_and_queries", "top");
  define(module, "sink_tokens", &tokens, "attention", "lengths", "support", "tau", "gamma",
         "min_visibility");
  define(module, "far_attention", &far, "attention", "lengths", "support");
}

}  // namespace attnscope
