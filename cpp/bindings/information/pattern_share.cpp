// SPDX-License-Identifier: MIT
#include "kernels/information/pattern_share.h"

#include <pybind11/stl.h>

#include <string>

#include "bindings/batched.h"

namespace attnscope {
namespace {

Pattern pattern_from(const std::string& name) {
  if (name == "first") return Pattern::first;
  if (name == "self") return Pattern::self;
  if (name == "previous") return Pattern::previous;
  if (name == "next") return Pattern::next;
  if (name == "duplicate") return Pattern::duplicate;
  if (name == "induction") return Pattern::induction;
  if (name == "marked") return Pattern::marked;
  throw py::value_error("no pattern is called '" + name + "'");
}

// (share, uniform, boost, queries, distance, each [..., P], non_finite) of the patterns in order.
// `tokens`: contiguous int64, n of each map or of all, for "duplicate" and "induction"; `marked`: a
// boolean tensor broadcast to the maps' shape, for "marked".
py::tuple pattern_share_of(Argument attention, Argument lengths, Argument support,
                           const std::vector<std::string>& names, Argument tokens, Argument marked,
                           bool all) {
  const Batch batch = make_batch(attention, lengths);
  const SupportBatch supports = make_support(batch, support);
  const py::object marked_pairs = marked.is_none() ? py::object(py::str("full")) : marked;
  const SupportBatch marks = make_support(batch, marked_pairs);
  std::vector<Pattern> patterns;
  for (const std::string& name : names) {
    patterns.push_back(pattern_from(name));
    const bool of_tokens =
        patterns.back() == Pattern::duplicate || patterns.back() == Pattern::induction;
    if ((of_tokens && tokens.is_none()) ||
        (patterns.back() == Pattern::marked && marked.is_none())) {
      throw py::value_error("'" + name + "' needs its tokens or marks");
    }
  }
  const bool of_all = !tokens.is_none() && py::len(tokens) == static_cast<std::size_t>(batch.n);
  const std::int64_t* ids = integers_of(tokens, of_all ? batch.n : batch.n * batch.count);
  const auto count = static_cast<Index>(patterns.size());
  using P = PatternShare;
  const Fields fields(batch.sizes, {count}, P{kNaN, kNaN, kNaN, -1, kNaN}, &P::share, &P::uniform,
                      &P::boost, &P::queries, &P::distance);
  struct Workspace {
    PatternWorkspace kernel;
    std::vector<PatternShare> shares;
  };
  const Index non_finite = per_matrix_checked_by_kernel<Workspace>(
      batch, [&](const auto& view, Index index, Workspace& workspace) {
        workspace.shares.resize(patterns.size());
        const std::int64_t* own_ids = ids == nullptr || of_all ? ids : ids + index * batch.n;
        const PatternRequest request{patterns.data(), count, own_ids, marks.given(index), all};
        Support of_map = supports.given(index);
        if (!pattern_share(view, supports.automatic, of_map, request, workspace.shares.data(),
                           workspace.kernel)) {
          return false;
        }
        for (Index at = 0; at < count; ++at) {
          fields.set(static_cast<std::size_t>(index * count + at),
                     workspace.shares[static_cast<std::size_t>(at)]);
        }
        return true;
      });
  return py::make_tuple(fields.tensors(), non_finite);
}

}  // namespace

void bind_pattern_share(py::module_& module) {
  define(module, "pattern_share", &pattern_share_of, "attention", "lengths", "support", "patterns",
         "tokens", "marked", "all");
}

}  // namespace attnscope
