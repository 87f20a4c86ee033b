# SPDX-License-Identifier: MIT
"""Bars of H0 and H1, and of H0 alone: against GUDHI, ripser.py and giotto-ph."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed, sizes
from maps import all_maps

TARGET = {32: 15, 64: 30, 128: 60, 256: 60, 512: 200}
LIMIT = {128: 100, 512: 250}
TARGET_H0, LIMIT_H0 = 80, 300
# Where the kernel's time goes, by `perf record` of the heads of stories260K on a Zen 4 EPYC with AVX-512.
PROFILE_H1 = {
    128: (
        "lunes of edges 16%, their splitting 14%, labels of open loops 24%, sorting 13%, looking ahead 10%, "
        "the rest reading the map"
    ),
    512: (
        "lunes of edges 17%, their splitting 18%, labels of open loops 25%, sorting 14%, looking ahead 6%, "
        "the rest reading the map"
    ),
}
PROFILE_H0 = {
    128: (
        "steps of the tree 52%, each of which waits for the row that the one before names, the square of "
        "similarities 21%, reading the map 14%, sorting 6%, bars 4%; a star is read twice and sorted"
    ),
}
# Calls in a row that find the caches as the last one left them, as calls between those of peers do not.
REPEATED = 10
# Peers need seconds for a large map, and GUDHI 4 for a sharp one of 256 tokens without a causal mask: those
# are left out.
MOST = {256: 2, 512: 1}
HARDEST = ("bidirectional n=256", "bidirectional n=512")


def dissimilarities(attention: torch.Tensor, dtype: type) -> list[np.ndarray]:
    w = np.maximum(attention.numpy(), attention.numpy().swapaxes(1, 2)).astype(np.float64)
    d = 1.0 - np.minimum(w, 1.0)
    for bars_of_dimension in d:
        np.fill_diagonal(bars_of_dimension, 0.0)
    return list(d.astype(dtype))


def lexicographic(bars: Any) -> np.ndarray:
    bars = np.asarray(bars, dtype=np.float64).reshape(-1, 2)
    bars = bars[bars[:, 0] < bars[:, 1]]
    return bars[np.lexsort((bars[:, 1], bars[:, 0]))]


def agree(peer: str, ours: asc.Barcodes, theirs: list[Any]) -> None:
    """GUDHI works in float64: difference 0. The others round 1 − w to float32, which changes ties."""
    for k, dims in enumerate(theirs):
        for our, bars in zip(ours[k], dims, strict=False):
            bars = lexicographic(bars)
            if peer == "gudhi":
                if not np.array_equal(our, bars):
                    raise AssertionError(f"{peer}: bars of map {k} differ")
            else:
                our_bars = lexicographic(our.astype(np.float32))
                if abs(len(our_bars) - len(bars)) > 0.02 * len(our_bars) + 2:
                    raise AssertionError(f"{peer}: map {k} has {len(bars)} bars, ours {len(our_bars)}")
                ends = [b[np.isfinite(b[:, 1])] for b in (our_bars, bars)]
                totals = [float((b[:, 1] - b[:, 0]).sum()) for b in ends]
                if abs(totals[0] - totals[1]) > 1e-4 * (1.0 + totals[0]):
                    raise AssertionError(
                        f"{peer}: total persistence of map {k} is {totals[1]}, ours {totals[0]}"
                    )


def repeated_ms(attention: torch.Tensor, max_dimension: int) -> float:
    """Milliseconds of processor time per map of the best of some calls in a row."""
    times = []
    for _ in range(REPEATED):
        began = time.process_time()
        asc.persistence(attention, max_dimension=max_dimension)
        times.append(time.process_time() - began)
    return 1e3 * min(times) / len(attention)


def peers_for(attention: torch.Tensor, max_dimension: int, few: int) -> dict[str, Any]:
    dims = list(range(max_dimension + 1))
    exact, single = dissimilarities(attention, np.float64), dissimilarities(attention[:few], np.float32)
    peers: dict[str, Any] = {}
    present = installed("gudhi", "ripser", "gph")
    if "gudhi" in present:
        from gudhi.sklearn.rips_persistence import RipsPersistence

        # GUDHI's own default is Z/11, over which dense maps can have other bars.
        rips = RipsPersistence(
            homology_dimensions=dims,
            homology_coeff_field=2,
            input_type="full distance matrix",
            n_jobs=1,
        )
        peers["gudhi"] = lambda: rips.fit_transform(exact)
    if "ripser" in present:
        from ripser import ripser

        peers["ripser"] = lambda: [
            ripser(d, distance_matrix=True, maxdim=max_dimension)["dgms"] for d in single
        ]
    if "gph" in present:
        from gph import ripser_parallel

        peers["giotto-ph"] = lambda: [
            ripser_parallel(d, metric="precomputed", maxdim=max_dimension, n_threads=1)["dgms"]
            for d in single
        ]
    return peers


def main() -> None:
    benchmark = Benchmark("persistence", __doc__ or "")
    for n in sizes(benchmark, (32, 64, 128, 256, 512), (64,)):
        for name, attention in all_maps(n).items():
            if not benchmark.wants(name) or name in HARDEST:
                continue
            attention = attention[: MOST.get(n, len(attention))]
            few = 1 if benchmark.quick else max(1, min(len(attention), 256 // n))
            for max_dimension, suffix in ((1, ""), (0, " H0")):
                peers = peers_for(attention, max_dimension, few)
                on_model = name.startswith("stories")
                target = TARGET_H0 if max_dimension == 0 else TARGET[n]
                limit = LIMIT_H0 if max_dimension == 0 else LIMIT.get(n)
                profile = PROFILE_H0 if max_dimension == 0 else PROFILE_H1
                bars = asc.persistence(attention, max_dimension=max_dimension)
                benchmark.compare(
                    name + suffix,
                    len(attention),
                    lambda a=attention, d=max_dimension: asc.persistence(a, max_dimension=d),
                    peers,
                    agree=agree,
                    peer_maps={"ripser": few, "giotto-ph": few},
                    target=target if on_model else None,
                    limit=limit if on_model else None,
                    against="gudhi" if "gudhi" in peers else None,
                    reads=attention.nbytes,
                    facts={
                        "n": n,
                        "max_dimension": max_dimension,
                        "bars": bars.birth.numel() / len(attention),
                        "repeated_ms": repeated_ms(attention, max_dimension),
                        "profile": profile.get(n) if on_model else None,
                    },
                )
    benchmark.finish()


if __name__ == "__main__":
    main()
