// SPDX-License-Identifier: MIT
#include "kernels/homology/persistence.h"

#include <algorithm>
#include <cstring>

#include "bindings/batched.h"
#include "bindings/next_matrix.h"
#include "bindings/options.h"
#include "bindings/spare_scratch.h"

namespace attnscope {
namespace {

Metric metric_from(const std::string& name) {
  if (name == "attention") return Metric::attention;
  if (name == "hellinger") return Metric::hellinger;
  if (name == "distance") return Metric::distance;
  throw py::value_error("metric must be 'attention', 'hellinger' or 'distance', got '" + name +
                        "'");
}

// What a worker computes with, and the bars of all matrices that it took, one after another: memory
// of many small vectors is cold where the next one begins.
struct Worker {
  PersistenceWorkspace workspace;
  std::vector<Bar> bars;
};
using Workers = std::vector<Worker>;

// Where the bars of a matrix are.
struct Slice {
  const Worker* worker = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
};

// Writes a field of the bars of all matrices behind each other.
template <class Field, class Number>
void copy_field(const std::vector<Slice>& slices, Field Bar::* field, Number* to) {
  static_assert(sizeof(Field) % sizeof(Number) == 0);
  for (const Slice& slice : slices) {
    for (std::size_t k = slice.begin; k < slice.end; ++k) {
      std::memcpy(to, &(slice.worker->bars[k].*field), sizeof(Field));
      to += sizeof(Field) / sizeof(Number);
    }
  }
}

// Up to so many tokens and bars the scratch of a call, 8 MB a worker at most, is kept for the next.
constexpr Index kMostKept = 512;
constexpr std::size_t kMostBarsKept = std::size_t{1} << 15;
SpareScratch<Workers> spare_workers;

void leave_for_next(std::unique_ptr<Workers> workers) {
  for (Worker& worker : *workers) {
    if (worker.bars.capacity() > kMostBarsKept) worker.bars = {};
  }
  spare_workers.leave(std::move(workers));
}

py::tuple bars(Argument attention, Argument lengths, int max_dimension,
               const std::string& symmetrize, const std::string& metric) {
  const Batch batch = make_batch(attention, lengths);
  const PersistenceOptions options{max_dimension, symmetrize_from(symmetrize), metric_from(metric)};
  std::vector<Slice> slices(batch.count);
  const auto find = [&](const auto& view, Index index, Index next, Worker& worker) {
    const std::size_t begin = worker.bars.size();
    const bool is_finite =
        persistence(view, options, worker.workspace, worker.bars, memory_of(batch, view, next));
    slices[index] = {&worker, begin, worker.bars.size()};
    return is_finite;
  };
  std::unique_ptr<Workers> workers = spare_workers.take();
  workers->resize(worker_count(batch.count));
  for (Worker& worker : *workers) worker.bars.clear();
  // Heads of one size differ in cost of loops by a hundred, so they are handed out one by one.
  const Index block = max_dimension == 0 ? block_size(batch, 1) : 1;
  const Index non_finite = per_matrix_in_turn(batch, *workers, block, block, find);
  const auto offsets = make_result({batch.count + 1}, {}, std::int64_t{0});
  Index total = 0;
  for (Index i = 0; i < batch.count; ++i) {
    offsets.data[i + 1] = total += static_cast<Index>(slices[i].end - slices[i].begin);
  }
  const auto birth = make_empty<double>({total}, {}), death = make_empty<double>({total}, {});
  const auto dimension = make_empty<std::int8_t>({total}, {});
  const auto birth_edge = make_empty<std::int32_t>({total}, {2});
  const auto death_edge = make_empty<std::int32_t>({total}, {2});
  // Field by field, with what is known of pieces, which saves 0.4 µs per map of 128 tokens.
  copy_field(slices, &Bar::death, death.data);
  copy_field(slices, &Bar::death_edge, death_edge.data);
  if (max_dimension == 0) {  // pieces are born at 0, with their vertices
    std::fill_n(birth.data, total, 0.0);
    std::fill_n(dimension.data, total, std::int8_t{0});
    std::fill_n(birth_edge.data, 2 * total, -1);
  } else {
    copy_field(slices, &Bar::birth, birth.data);
    copy_field(slices, &Bar::dimension, dimension.data);
    copy_field(slices, &Bar::birth_edge, birth_edge.data);
  }
  if (batch.n <= kMostKept) leave_for_next(std::move(workers));
  return py::make_tuple(birth.tensor, death.tensor, dimension.tensor, birth_edge.tensor,
                        death_edge.tensor, offsets.tensor, non_finite);
}

}  // namespace

void bind_persistence(py::module_& module) {
  define(module, "persistence", &bars, "attention", "lengths", "max_dimension", "symmetrize",
         "metric");
  module.attr("max_vertices") = kMaxVertices;
}

}  // namespace attnscope
