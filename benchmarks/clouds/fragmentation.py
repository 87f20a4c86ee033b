# SPDX-License-Identifier: MIT
"""Fragmentation of 99 subsets of one cloud: against SciPy's spanning tree and NumPy's median, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import point_clouds

TARGET = 10
PEER = 10


def by_scipy(distances: np.ndarray, subsets: np.ndarray) -> np.ndarray:
    from scipy.sparse.csgraph import minimum_spanning_tree

    values = []
    for subset in subsets:
        distances_of_subset = distances[np.ix_(subset, subset)]
        deaths = minimum_spanning_tree(distances_of_subset).data
        values.append(
            deaths.mean() / np.median(distances_of_subset[np.tril_indices(len(distances_of_subset), -1)])
        )
    return np.array(values)


def agree(peer: str, ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours[: len(theirs)], theirs, rtol=1e-10, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("fragmentation", __doc__ or "")
    for n in sizes(benchmark, (100, 400), (100,)):
        for name, points in point_clouds(n, widths=(64,)).items():
            if not benchmark.wants(name):
                continue
            points = points[0]
            flags = torch.rand(99, n, generator=torch.Generator().manual_seed(0)) < 0.5
            distances = asc.cloud_distances(points, metric="cosine").numpy()
            benchmark.compare(
                name,
                len(flags),
                lambda x=points, f=flags: asc.fragmentation(x, subsets=f),
                {"scipy": lambda d=distances, f=flags: by_scipy(d, f[:PEER].numpy())},
                agree=agree,
                reads=points.nbytes,
                peer_maps={"scipy": PEER},
                target=TARGET,
                facts={"n": n, "subsets": len(flags)},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
