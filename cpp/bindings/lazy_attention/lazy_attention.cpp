// SPDX-License-Identifier: MIT
#include "kernels/lazy_attention/lazy_attention.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "bindings/batched.h"
#include "bindings/exchange.h"

namespace attnscope {
namespace {

// Pairs of queries and keys in a piece of work, which is a tenth of a second at most.
constexpr Index kPairs = Index{1} << 21;

VectorType vector_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::float16:
      return VectorType::float16;
    case Dtype::bfloat16:
      return VectorType::bfloat16;
    case Dtype::float32:
      return VectorType::float32;
    case Dtype::float64:
      break;
  }
  return VectorType::float64;
}

NumberRows rows_of(const MatrixBatch& batch, Index index) {
  const Index bytes = batch.dtype == Dtype::float64 ? 8 : batch.dtype == Dtype::float32 ? 4 : 2;
  return {static_cast<const char*>(batch.data) + batch.offset(index) * bytes,
          vector_type(batch.dtype), batch.row_stride, batch.column_stride};
}

// A boolean tensor of the shape of the attention; attnscope.LazyAttention expands it.
Strided mask_of(Argument mask, Index rank) {
  Strided result;
  if (mask.is_none()) return result;
  const ArrayView array = view_array(mask, "mask");
  if (array.type() != kBoolType || !array.on_cpu() || array.rank() != rank) {
    throw py::value_error("mask must be a boolean CPU tensor of the shape of the attention");
  }
  result.owner = array.owner();
  result.data = array.data();
  result.row_stride = array.stride(-2);
  result.column_stride = array.stride(-1);
  for (Index axis = 0; axis + 2 < rank; ++axis) {
    result.sizes.push_back(array.size(axis));
    result.strides.push_back(array.stride(axis));
  }
  return result;
}

// What stands for the heads of a call: `heads` holds pointers into the memory of the rest.
struct LazyBatch {
  MatrixBatch query, key, bias;
  Strided mask;
  std::vector<LazyHead> heads;
  // What is measured is the mean of so many heads that follow each other, and each of them where
  // there is no log Z of the heads.
  Index heads_of_map = 1;
  const double* log_z = nullptr;
  std::vector<Index> sizes;  // of the results, before queries or keys

  Index queries() const { return query.rows; }
  Index keys() const { return key.rows; }
  Index maps() const { return static_cast<Index>(heads.size()) / heads_of_map; }
  const LazyHead& first_head(Index map) const { return heads[map * heads_of_map]; }
};

// `numbers`: scaling, softcap, slope and learned sink of each head, [count, 4]; `lengths`: [count];
// `positions`: None or [count, queries].
LazyBatch make_lazy(Argument query, Argument key, Argument numbers, Argument lengths,
                    Argument positions, Argument bias, Argument mask, bool causal, Index window,
                    Index after) {
  LazyBatch batch{make_matrices(query, "query"), make_matrices(key, "key"), {}, {}, {}};
  if (batch.query.sizes != batch.key.sizes || batch.query.columns != batch.key.columns) {
    throw py::value_error("query and key must have the same leading axes and width");
  }
  if (!bias.is_none()) batch.bias = make_matrices(bias, "bias");
  batch.mask = mask_of(mask, static_cast<Index>(batch.query.sizes.size()) + 2);
  const Index count = batch.query.count;
  const double* const of_heads = numbers_of(numbers, 4 * count);
  const std::int64_t* const sizes = integers_of(lengths, count);
  const std::int64_t* const places = integers_of(positions, count * batch.query.rows);
  for (Index index = 0; index < count; ++index) {
    LazyHead head;
    head.query = rows_of(batch.query, index);
    head.key = rows_of(batch.key, index);
    head.queries = batch.query.rows;
    head.keys = batch.key.rows;
    head.width = batch.query.columns;
    head.positions = places == nullptr ? nullptr : places + index * batch.query.rows;
    head.length = sizes[index];
    head.causal = causal;
    head.window = window;
    head.after = after;
    head.scaling = of_heads[4 * index];
    head.softcap = of_heads[4 * index + 1];
    head.slope = of_heads[4 * index + 2];
    head.sink_logit = of_heads[4 * index + 3];
    if (batch.bias.data != nullptr) head.bias = rows_of(batch.bias, index);
    if (batch.mask.data != nullptr) {
      head.mask = static_cast<const bool*>(batch.mask.data) + batch.mask.offset(index);
      head.mask_row_stride = batch.mask.row_stride;
      head.mask_column_stride = batch.mask.column_stride;
    }
    batch.heads.push_back(head);
  }
  batch.sizes = batch.query.sizes;
  return batch;
}

// Makes the batch one of means over the last two axes of heads, whose log Z is [..., queries].
void average_heads(LazyBatch& batch, Argument log_z) {
  const Index count = static_cast<Index>(batch.heads.size());
  batch.log_z = numbers_of(log_z, count * batch.queries());
  const Index rank = static_cast<Index>(batch.sizes.size());
  if (rank < 2) throw py::value_error("heads must have two axes");
  batch.heads_of_map = batch.sizes[rank - 2] * batch.sizes[rank - 1];
  batch.sizes.resize(rank - 2);
  batch.sizes.push_back(1);
}

// Sums of keys, to which each piece of a head adds in the order of pieces, whichever worker ends
// first.
class OrderedSums {
 public:
  OrderedSums(Index heads) : next_(heads, 0), pending_(heads) {}

  void add(Index head, Index piece, LazyColumns columns,
           const std::function<void(Index, const LazyColumns&)>& take) {
    const std::lock_guard<std::mutex> guard(lock_);
    auto& waiting = pending_[head];
    waiting.emplace(piece, std::move(columns));
    while (!waiting.empty() && waiting.begin()->first == next_[head]) {
      take(head, waiting.begin()->second);
      waiting.erase(waiting.begin());
      ++next_[head];
    }
  }

 private:
  std::mutex lock_;
  std::vector<Index> next_;
  std::vector<std::map<Index, LazyColumns>> pending_;
};

struct Piece {
  Index map, number, begin, end;
};

// Borders follow from sizes alone, so that results do not depend on the number of threads.
std::vector<Piece> pieces_of(const LazyBatch& batch, bool exact) {
  const Index step = lazy_rows(exact);
  const Index pairs = std::max<Index>(1, batch.keys()) * batch.heads_of_map;
  const Index rows = std::max<Index>(1, kPairs / pairs / step) * step;
  std::vector<Piece> pieces;
  for (Index map = 0; map < batch.maps(); ++map) {
    Index number = 0;
    for (Index begin = 0; begin < batch.queries(); begin += rows) {
      pieces.push_back({map, number++, begin, std::min(begin + rows, batch.queries())});
    }
  }
  return pieces;
}

// A tensor for each result that is asked for, and where each head's part of it begins.
class LazyResults {
 public:
  LazyResults(const LazyBatch& batch, const std::vector<std::string>& names) : batch_(batch) {
    for (const std::string& name : names) names_[name] = {};
  }

  bool wants_result(const char* name) const { return names_.count(name) > 0; }

  double* numbers(const char* name, Index rows, Index width) {
    if (!wants_result(name)) return nullptr;
    std::vector<Index> trailing{rows};
    if (width >= 0) trailing.push_back(width);
    const Result<double> result = make_result(batch_.sizes, trailing, kNaN);
    tensors_[name] = result.tensor;
    return result.data;
  }
  std::int64_t* integers(const char* name, Index rows, Index width) {
    if (!wants_result(name)) return nullptr;
    const Result<std::int64_t> result = make_result(batch_.sizes, {rows, width}, std::int64_t{-1});
    tensors_[name] = result.tensor;
    return result.data;
  }
  // A number for each query of each head, where the mean of heads is measured.
  double* of_heads(const char* name) {
    if (!wants_result(name)) return nullptr;
    const Result<double> result = make_result(batch_.query.sizes, {batch_.queries()}, kNaN);
    tensors_[name] = result.tensor;
    return result.data;
  }
  void set(const char* name, py::object tensor) { tensors_[name] = std::move(tensor); }
  py::dict dict() const {
    py::dict result;
    for (const auto& [name, tensor] : tensors_) result[py::str(name)] = tensor;
    return result;
  }

 private:
  const LazyBatch& batch_;
  std::map<std::string, int> names_;
  std::map<std::string, py::object> tensors_;
};

// The memory of a contiguous tensor of the type that is computed in, and the size of its last axis.
const void* operand_of(Argument operand, bool exact, Index count, Index rows, bool channels_last,
                       Index& channels) {
  channels = 0;
  if (operand.is_none()) return nullptr;
  const ArrayView array = view_array(operand, "operand");
  const Index other = array.size(channels_last ? -2 : -1);
  channels = array.size(channels_last ? -1 : -2);
  if (array.type() != (exact ? kDoubleType : kFloatType) || !array.is_contiguous() ||
      !array.on_cpu() || other != rows || array.count() != count * rows * channels) {
    throw py::value_error(
        "operand must be a contiguous CPU tensor with a row for every query or key");
  }
  return array.data();
}

// A dict of the results named in `asked`, [..., queries] or [..., keys] and an axis of their own.
// `firsts`: [F]; `nears`: int64 [count, W]; `far`: int64 [count] or None; `right` [..., channels,
// keys] and `left` [..., queries, channels] of float64 where `exact`, else float32. With `log_z`,
// of the heads, results are those of the mean over the last two axes, [..., 1, queries], but for
// `divergence`.
py::dict lazy_measures(Argument query, Argument key, Argument numbers, Argument lengths,
                       Argument positions, Argument bias, Argument mask, bool causal, Index window,
                       Index after, bool exact, const std::vector<std::string>& names,
                       const std::vector<Index>& firsts, Argument nears, bool without_first,
                       Argument far, double threshold, Index top, Argument right, Argument left,
                       Argument log_z) {
  LazyBatch batch =
      make_lazy(query, key, numbers, lengths, positions, bias, mask, causal, window, after);
  if (!log_z.is_none()) average_heads(batch, log_z);
  const Index count = batch.maps();
  const Index queries = batch.queries(), keys = batch.keys();
  LazyResults results(batch, names);
  LazyRequest request;
  request.exact = exact;
  request.firsts = firsts;
  Index near_count = 0;
  if (!nears.is_none()) near_count = view_array(nears, "nears").size(-1);
  const std::int64_t* const near_distances = integers_of(nears, count * near_count);
  const std::int64_t* const far_distances = integers_of(far, count);
  request.near_count = near_count;
  request.without_first = without_first;
  request.threshold = threshold;
  request.top = top;
  request.columns = results.wants_result("incoming") || results.wants_result("squares") ||
                    results.wants_result("far_incoming");
  const void* const rights = operand_of(right, exact, count, keys, false, request.right_channels);
  const void* const lefts = operand_of(left, exact, count, queries, true, request.left_channels);
  const Index firsts_count = static_cast<Index>(firsts.size());

  LazyRows outputs;
  outputs.log_z = results.numbers("log_z", queries, -1);
  outputs.entropy = results.numbers("entropy", queries, -1);
  outputs.collision = results.numbers("collision", queries, -1);
  outputs.largest = results.numbers("largest", queries, -1);
  outputs.distance = results.numbers("distance", queries, -1);
  outputs.mass = results.numbers("mass", queries, -1);
  outputs.far_mass = results.numbers("far_mass", queries, -1);
  outputs.far_squares = results.numbers("far_squares", queries, -1);
  outputs.far_largest = results.numbers("far_largest", queries, -1);
  outputs.first = results.numbers("first", queries, firsts_count);
  outputs.near = results.numbers("near", queries, near_count);
  outputs.beyond = results.numbers("beyond", queries, near_count);
  outputs.product = results.numbers("product", queries, request.right_channels);
  outputs.top_weights = results.numbers("top_weights", queries, top);
  outputs.top_keys = results.integers("top_keys", queries, top);
  double* const incoming = results.numbers("incoming", keys, -1);
  double* const squares = results.numbers("squares", keys, -1);
  double* const far_incoming = results.numbers("far_incoming", keys, -1);
  double* const transposed = results.numbers("transposed_product", keys, request.left_channels);
  double* const divergence = batch.log_z == nullptr ? nullptr : results.of_heads("divergence");
  for (Index index = 0; index < count; ++index) {
    const LazyHead& head = batch.first_head(index);
    for (double* sums : {incoming, squares, far_incoming}) {
      if (sums != nullptr) std::fill_n(sums + index * keys, head.length, 0.0);
    }
    if (transposed != nullptr) {
      std::fill_n(transposed + index * keys * request.left_channels,
                  head.length * request.left_channels, 0.0);
    }
  }

  const std::vector<Piece> pieces = pieces_of(batch, exact);
  const Index piece_count = static_cast<Index>(pieces.size());
  std::vector<LazyEntries> entries(threshold > 0.0 ? pieces.size() : 0);
  std::vector<LazyWorkspace> workspaces(worker_count(piece_count));
  OrderedSums sums(count);
  const auto take = [&](Index index, const LazyColumns& columns) {
    const auto add = [&](double* to, const std::vector<double>& from, Index width) {
      if (to == nullptr || from.empty()) return;
      const Index length = batch.first_head(index).length * width;
      for (Index k = 0; k < length; ++k) to[index * keys * width + k] += from[k];
    };
    add(incoming, columns.incoming, 1);
    add(squares, columns.squares, 1);
    add(far_incoming, columns.far_incoming, 1);
    add(transposed, columns.product, request.left_channels);
  };
  run_blocks(piece_count, 1, [&](Index number, Index, int worker) {
    const Piece& piece = pieces[number];
    const Index at = piece.map * queries;
    const auto from = [&](auto* to, Index width) {
      return to == nullptr ? nullptr : to + at * width;
    };
    LazyRows rows;
    rows.log_z = from(outputs.log_z, 1);
    rows.entropy = from(outputs.entropy, 1);
    rows.collision = from(outputs.collision, 1);
    rows.largest = from(outputs.largest, 1);
    rows.distance = from(outputs.distance, 1);
    rows.mass = from(outputs.mass, 1);
    rows.far_mass = from(outputs.far_mass, 1);
    rows.far_squares = from(outputs.far_squares, 1);
    rows.far_largest = from(outputs.far_largest, 1);
    rows.first = from(outputs.first, firsts_count);
    rows.near = from(outputs.near, near_count);
    rows.beyond = from(outputs.beyond, near_count);
    rows.product = from(outputs.product, request.right_channels);
    rows.top_weights = from(outputs.top_weights, top);
    rows.top_keys = from(outputs.top_keys, top);
    LazyRequest request_of_head = request;
    const Index bytes = exact ? 8 : 4;
    if (near_count > 0) request_of_head.nears = near_distances + piece.map * near_count;
    if (far_distances != nullptr) request_of_head.far = far_distances[piece.map];
    if (rights != nullptr) {
      request_of_head.right =
          static_cast<const char*>(rights) + piece.map * keys * request.right_channels * bytes;
    }
    if (lefts != nullptr) {
      request_of_head.left =
          static_cast<const char*>(lefts) + piece.map * queries * request.left_channels * bytes;
    }
    LazyColumns columns;
    LazyEntries piece_entries;
    if (batch.log_z == nullptr) {
      measure_lazy_rows(batch.heads[piece.map], piece.begin, piece.end, request_of_head, rows,
                        columns, piece_entries, workspaces[worker]);
    } else {
      const Index first = piece.map * batch.heads_of_map;
      const LazyHeads heads{batch.heads.data() + first, batch.heads_of_map,
                            batch.log_z + first * queries,
                            divergence == nullptr ? nullptr : divergence + first * queries};
      measure_lazy_mean_rows(heads, piece.begin, piece.end, request_of_head, rows, columns,
                             piece_entries, workspaces[worker]);
    }
    if (request.columns || request.left_channels > 0)
      sums.add(piece.map, piece.number, std::move(columns), take);
    if (threshold > 0.0) entries[number] = std::move(piece_entries);
  });

  if (threshold > 0.0) {
    Index total = 0;
    for (const LazyEntries& part : entries) total += static_cast<Index>(part.keys.size());
    const Result<std::int64_t> counts = make_empty<std::int64_t>(batch.sizes, {queries});
    const Result<std::int32_t> columns = make_empty<std::int32_t>({}, {total});
    const Result<double> weights = make_empty<double>({}, {total});
    Index row = 0, entry = 0;
    for (LazyEntries& part : entries) {
      std::copy(part.counts.begin(), part.counts.end(), counts.data + row);
      std::copy(part.keys.begin(), part.keys.end(), columns.data + entry);
      std::copy(part.weights.begin(), part.weights.end(), weights.data + entry);
      row += static_cast<Index>(part.counts.size());
      entry += static_cast<Index>(part.keys.size());
      part = {};
    }
    results.set("counts", counts.tensor);
    results.set("keys", columns.tensor);
    results.set("weights", weights.tensor);
  }
  return results.dict();
}

// Weights of queries [begin, end) and keys [start, stop) of every head, float64; NaN for queries of
// padding.
py::object lazy_weights(Argument query, Argument key, Argument numbers, Argument lengths,
                        Argument positions, Argument bias, Argument mask, bool causal, Index window,
                        Index after, bool exact, Argument log_z, Index begin, Index end,
                        Index start, Index stop) {
  const LazyBatch batch =
      make_lazy(query, key, numbers, lengths, positions, bias, mask, causal, window, after);
  const Index count = static_cast<Index>(batch.heads.size());
  if (begin < 0 || end > batch.queries() || start < 0 || stop > batch.keys() || begin > end ||
      start > stop) {
    throw py::value_error("the tile lies outside the attention");
  }
  const double* const sums = numbers_of(log_z, count * batch.queries());
  const Result<double> result = make_result(batch.query.sizes, {end - begin, stop - start}, kNaN);
  std::vector<LazyWorkspace> workspaces(worker_count(count));
  run_blocks(count, 1, [&](Index index, Index, int worker) {
    lazy_tile(batch.heads[index], begin, end, start, stop, exact, sums + index * batch.queries(),
              result.data + index * (end - begin) * (stop - start), workspaces[worker]);
  });
  return result.tensor;
}

}  // namespace

void bind_lazy_attention(py::module_& module) {
  define(module, "lazy_measures", &lazy_measures, "query", "key", "numbers", "lengths", "positions",
         "bias", "mask", "causal", "window", "after", "exact", "asked", "firsts", "nears",
         "without_first", "far", "threshold", "top", "right", "left", "log_z");
  define(module, "lazy_weights", &lazy_weights, "query", "key", "numbers", "lengths", "positions",
         "bias", "mask", "causal", "window", "after", "exact", "log_z", "begin", "end", "start",
         "stop");
}

}  // namespace attnscope
