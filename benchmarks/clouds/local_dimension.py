# SPDX-License-Identifier: MIT
"""Intrinsic dimension of 999 subsets of one cloud: against NumPy's partition and scikit-learn, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed, sizes
from maps import point_clouds

POINTS, NEIGHBOURS, TARGET = 640, 20, 10
# Subsets that a peer does of all: it takes milliseconds for each.
PEER = 20


def pooled(nearest: np.ndarray) -> float:
    """Of the distances of the k nearest neighbours of each point, ascending."""
    logs = np.log(nearest[:, -1:] / nearest[:, :-1])
    return float((NEIGHBOURS - 1) * len(nearest) / logs.sum())


def by_numpy(distances: np.ndarray, subsets: np.ndarray) -> np.ndarray:
    """From given distances, each subset's part of them partitioned."""
    values = []
    for subset in subsets:
        distances_of_subset = distances[np.ix_(subset, subset)]
        nearest = np.partition(distances_of_subset, NEIGHBOURS, axis=1)[:, : NEIGHBOURS + 1]
        nearest.sort(axis=1)
        values.append(pooled(nearest[:, 1:]))
    return np.array(values)


def by_sklearn(points: np.ndarray, subsets: np.ndarray) -> np.ndarray:
    from sklearn.neighbors import NearestNeighbors

    values = []
    for subset in subsets:
        points_of_subset = points[subset]
        search = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(points_of_subset)
        values.append(pooled(search.kneighbors()[0]))
    return np.array(values)


def agree(peer: str, ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours.value[: len(theirs), 0], theirs, rtol=1e-7, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("local_dimension", __doc__ or "")
    present = installed("sklearn")
    count = sizes(benchmark, (999,), (99,))[0]
    for name, points in point_clouds(POINTS).items():
        if not benchmark.wants(name):
            continue
        flags = torch.rand(count, POINTS, generator=torch.Generator().manual_seed(0)) < 0.5
        few = flags[:PEER].numpy()
        points = points[0]
        distances = asc.cloud_distances(points).numpy()
        peers: dict[str, Any] = {"numpy": lambda d=distances, f=few: by_numpy(d, f)}
        if "sklearn" in present:
            peers["sklearn"] = lambda x=points, f=few: by_sklearn(x.numpy(), f)
        benchmark.compare(
            name,
            count,
            lambda x=points, f=flags: asc.local_dimension(x, k=NEIGHBOURS, subsets=f),
            peers,
            agree=agree,
            reads=points.nbytes,
            peer_maps=dict.fromkeys(peers, PEER),
            target=TARGET,
            facts={"n": POINTS, "k": NEIGHBOURS, "subsets": count},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
