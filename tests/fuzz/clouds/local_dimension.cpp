// SPDX-License-Identifier: MIT
#include "kernels/clouds/local_dimension.h"

#include "inputs.h"

namespace attnscope::fuzz {

template <class Scalar>
void find(const MatrixView<Scalar>& view, const std::int64_t* groups, Index wanted,
          Neighbours& neighbours) {
  NeighbourScratch scratch;
  reset_neighbours(view.rows(), neighbours);
  for (Index i = 0; i < view.rows(); ++i) {
    sort_neighbours(view, groups, i, wanted, neighbours, neighbours.equal, scratch);
    neighbours.equal_begin[i + 1] = static_cast<Index>(neighbours.equal.size());
  }
}

struct Found {
  Found(const Neighbours& neighbours, const bool* member, const std::vector<Index>& k)
      : value(k.size()), points(k.size() * neighbours.n, -1.0), used(k.size()), tied(k.size()) {
    std::vector<double> scratch;
    const LocalDimensionResult result{value.data(), points.data(), used.data(), tied.data()};
    const auto count = static_cast<Index>(k.size());
    duplicates = local_dimension(neighbours, member, k.data(), count, result, scratch);
    two = two_nn(neighbours, member, 0.0, scratch);
    fit = two_nn(neighbours, member, 0.25, scratch);
  }
  std::vector<double> value, points;
  std::vector<std::int64_t> used, tied;
  Index duplicates;
  double two, fit;
};

template <class Scalar>
void dimensions(Bytes& bytes) {
  const Index n = read_size(bytes, 14, 70);
  const Distances<Scalar> distances(bytes, n);
  const Members members(bytes, n);
  std::vector<std::int64_t> groups;
  for (Index i = 0; i < n; ++i) groups.push_back(bytes.byte() % 3);
  const std::int64_t* labels = bytes.flag() ? groups.data() : nullptr;
  const std::vector<Index> k = {bytes.between(2, 9), 2, 5};

  Neighbours all;
  Neighbours nearest;
  find(distances.view(), labels, -1, all);
  find(distances.view(), labels, 9, nearest);
  const Found whole(all, nullptr, k);
  const Found few(nearest, nullptr, k);
  for (std::size_t a = 0; a < k.size(); ++a) {
    LAW(same_bits(whole.value[a], few.value[a]), "more neighbours change the value");
    LAW(whole.used[a] + whole.tied[a] <= n, "%ld points", long(whole.used[a]));
    LAW(std::isnan(whole.value[a]) == (whole.used[a] == 0), "value %g", whole.value[a]);
    LAW(!(whole.value[a] <= 0.0), "value %g", whole.value[a]);
  }
  for (Index i = 0; i < n; ++i) {
    for (Index j = 1; j < all.count[i]; ++j) {
      LAW(all.log[i * n + j - 1] <= all.log[i * n + j], "neighbours out of order");
    }
  }

  const Found subset(all, members.flags.get(), k);
  const auto m = static_cast<Index>(members.list.size());
  if (m == 0) return;
  const std::vector<Scalar> own = distances.part(members.list);
  std::vector<std::int64_t> their_groups;
  for (const Index i : members.list) their_groups.push_back(groups[i]);
  Neighbours alone_neighbours;
  find(matrix_view(own.data(), m, m, 1), labels == nullptr ? nullptr : their_groups.data(), 9,
       alone_neighbours);
  const Found alone(alone_neighbours, nullptr, k);
  LAW(subset.duplicates == alone.duplicates, "%ld duplicates", long(subset.duplicates));
  LAW(near(subset.two, alone.two, 0.0), "two_nn %g, alone %g", subset.two, alone.two);
  LAW(near(subset.fit, alone.fit, 0.0), "the fit %g, alone %g", subset.fit, alone.fit);
  for (std::size_t a = 0; a < k.size(); ++a) {
    LAW(near(subset.value[a], alone.value[a], 0.0), "%g, alone %g", subset.value[a],
        alone.value[a]);
    LAW(subset.used[a] == alone.used[a] && subset.tied[a] == alone.tied[a], "counts");
    for (Index i = 0; i < m; ++i) {
      LAW(near(subset.points[a * n + members.list[i]], alone.points[a * m + i], 0.0), "a point");
    }
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::dimensions)
