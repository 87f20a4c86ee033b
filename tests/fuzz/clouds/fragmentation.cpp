// SPDX-License-Identifier: MIT
#include "kernels/clouds/fragmentation.h"

#include "inputs.h"

namespace attnscope::fuzz {

// The sizes of the components of the graph of all pairs not farther apart than a scale.
template <class Scalar>
std::vector<Index> sizes_by_search(const Distances<Scalar>& distances, double scale) {
  const Index n = distances.size();
  std::vector<Index> component(static_cast<std::size_t>(n), -1);
  std::vector<Index> sizes;
  for (Index start = 0; start < n; ++start) {
    if (component[start] >= 0) continue;
    std::vector<Index> queue = {start};
    component[start] = static_cast<Index>(sizes.size());
    for (std::size_t at = 0; at < queue.size(); ++at) {
      for (Index j = 0; j < n; ++j) {
        if (component[j] >= 0 || distances(queue[at], j) > scale) continue;
        component[j] = component[start];
        queue.push_back(j);
      }
    }
    sizes.push_back(static_cast<Index>(queue.size()));
  }
  return sizes;
}

template <class Scalar>
void pieces(Bytes& bytes) {
  const Index n = read_size(bytes, 14, 90);
  const Distances<Scalar> distances(bytes, n);
  const Members members(bytes, n);
  static FragmentationWorkspace reused;
  FragmentationWorkspace fresh;
  const double value = fragmentation(distances.view(), nullptr, fresh);
  LAW(near(value, fragmentation(distances.view(), nullptr, reused), 0.0), "scratch: %g", value);
  LAW(std::isnan(value) || value > 0.0, "%g", value);

  const double subset = fragmentation(distances.view(), members.flags.get(), reused);
  const auto m = static_cast<Index>(members.list.size());
  if (m > 0) {
    const std::vector<Scalar> own = distances.part(members.list);
    const double alone = fragmentation(matrix_view(own.data(), m, m, 1), nullptr, fresh);
    LAW(near(subset, alone, 0.0), "%.17g, alone %.17g", subset, alone);
  } else {
    LAW(std::isnan(subset), "%g of no points", subset);
  }

  std::vector<double> scales = {-1.0, 0.0, bytes.unit(), 2.0 * bytes.unit(), 1e30};
  std::sort(scales.begin(), scales.end());
  const Index least = bytes.between(1, 6);
  std::vector<Components> found(scales.size());
  cloud_components(distances.view(), scales.data(), static_cast<Index>(scales.size()), least,
                   found.data(), reused);
  for (std::size_t s = 0; s < scales.size(); ++s) {
    const std::vector<Index> sizes = sizes_by_search(distances, scales[s]);
    const auto count = [&](auto test) { return std::count_if(sizes.begin(), sizes.end(), test); };
    LAW(found[s].components == static_cast<Index>(sizes.size()), "%ld", long(found[s].components));
    LAW(found[s].clusters == count([=](Index size) { return size >= least; }), "clusters");
    LAW(found[s].singletons == count([](Index size) { return size == 1; }), "singletons");
    const Index largest = *std::max_element(sizes.begin(), sizes.end());
    LAW(found[s].largest == double(largest) / double(n), "largest");
  }
}

}  // namespace attnscope::fuzz

ATTNSCOPE_FUZZ_TARGET(attnscope::fuzz::pieces)
