# SPDX-License-Identifier: MIT
"""Betti numbers at six thresholds, against full persistence by GUDHI and by ourselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed
from kernels.persistence import dissimilarities
from maps import wanted_maps

THRESHOLDS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5)


def counts(dims: list[Any]) -> np.ndarray:
    """[T, 2] of bars alive at each threshold."""
    scales = 1.0 - np.array(THRESHOLDS)
    return np.array(
        [[((bars[:, 0] <= s) & (s < bars[:, 1])).sum() for bars in map(np.atleast_2d, dims)] for s in scales]
    )


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    if not np.array_equal(ours.numpy()[: len(theirs)], np.asarray(theirs)):
        raise AssertionError(f"{peer}: Betti numbers differ")


def main() -> None:
    benchmark = Benchmark("betti", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256, 512), (64,)):
        peers: dict[str, Any] = {
            "ours by persistence": lambda a=attention: asc.betti_curve(
                asc.persistence(a), [1.0 - t for t in THRESHOLDS]
            )
        }
        if installed("gudhi"):
            from gudhi.sklearn.rips_persistence import RipsPersistence

            exact = dissimilarities(attention, np.float64)
            rips = RipsPersistence(
                homology_dimensions=[0, 1],
                input_type="full distance matrix",
                threshold=1.0 - THRESHOLDS[0],
                n_jobs=1,
            )
            peers["gudhi"] = lambda rips=rips, exact=exact: [counts(d) for d in rips.fit_transform(exact)]
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.betti_numbers(a, THRESHOLDS),
            peers,
            agree=agree,
            reads=attention.nbytes,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
