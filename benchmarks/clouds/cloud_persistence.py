# SPDX-License-Identifier: MIT
"""Bars of H0 and H1 of point clouds from one matrix of distances: against GUDHI and ripser.py."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnscope as asc
from harness import Benchmark, installed, sizes
from maps import point_clouds

GAUSSIAN, STATES = 100, 20
# Points of all clouds of a call, so that a call is more than its overhead; peers do one of the clouds.
POINTS = 800


def lexicographic(bars: Any) -> np.ndarray:
    bars = np.asarray(bars, dtype=np.float64).reshape(-1, 2)
    bars = bars[bars[:, 0] < bars[:, 1]]
    return bars[np.lexsort((bars[:, 1], bars[:, 0]))]


def by_gudhi(distances: np.ndarray) -> list[np.ndarray]:
    import gudhi

    # Edges are collapsed before triangles are made; bars are those of the whole complex.
    tree = gudhi.RipsComplex(distance_matrix=distances).create_simplex_tree(max_dimension=1)
    tree.collapse_edges()
    tree.expansion(2)
    tree.compute_persistence(homology_coeff_field=2)
    return [tree.persistence_intervals_in_dimension(k) for k in (0, 1)]


def agree(peer: str, ours: asc.Barcodes, theirs: list[Any]) -> None:
    """GUDHI works in float64: difference 0. ripser.py rounds distances to float32, which may tie some."""
    for dimension, (our_bars, bars) in enumerate(zip(ours[0], theirs, strict=True)):
        bars = lexicographic(bars)
        if peer == "gudhi":
            np.testing.assert_array_equal(our_bars, bars, err_msg=f"{peer} H{dimension}")
            continue
        our_bars, bars = (finite_bars[np.isfinite(finite_bars[:, 1])] for finite_bars in (our_bars, bars))
        totals = [float((bars_of_side[:, 1] - bars_of_side[:, 0]).sum()) for bars_of_side in (our_bars, bars)]
        np.testing.assert_allclose(totals[1], totals[0], rtol=1e-5, err_msg=f"{peer} H{dimension}")


def main() -> None:
    benchmark = Benchmark("cloud_persistence", __doc__ or "")
    present = installed("gudhi", "ripser")
    for n in sizes(benchmark, (100, 200, 300, 400), (100,)):
        for name, points in point_clouds(n, POINTS // n).items():
            if not benchmark.wants(name):
                continue
            distances = asc.cloud_distances(points, metric="cosine")
            peers: dict[str, Any] = {}
            gaussian = name.startswith("gaussian")
            if "gudhi" in present:
                peers["gudhi"] = lambda d=distances: by_gudhi(d[0].numpy())
            # ripser.py takes two minutes for 400 points without structure, where GUDHI takes ten seconds.
            if "ripser" in present and not (gaussian and n >= 400):
                from ripser import ripser

                single = distances[0].float().numpy()
                peers["ripser"] = lambda d=single: ripser(d, distance_matrix=True, maxdim=1)["dgms"]
            benchmark.compare(
                name,
                len(points),
                lambda d=distances: asc.cloud_persistence(d, metric="precomputed"),
                peers,
                agree=agree,
                reads=distances.nbytes,
                peer_maps=dict.fromkeys(peers, 1),
                target=STATES if not gaussian else GAUSSIAN if n >= 200 else None,
                facts={"n": n, "d": points.shape[-1]},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
