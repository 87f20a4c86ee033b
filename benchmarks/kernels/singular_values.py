# SPDX-License-Identifier: MIT
"""All singular values in float64, against torch, NumPy and SciPy (all LAPACK gesdd without vectors)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, installed
from maps import wanted_maps

TARGETS = {32: 7.0, 64: 7.0, 128: 6.0, 256: 4.0, 512: 4.0}
# A call of ours takes this many maps of a size, so that large sizes stay within memory and time.
MOST = {256: 16, 512: 8}


def agree(tolerance: float) -> Any:
    def check(peer: str, ours: torch.Tensor, theirs: Any) -> None:
        expected = np.asarray(theirs)
        error = np.abs(ours.numpy()[: len(expected)] - expected).max(-1) / expected[:, 0]
        if not np.all(error <= tolerance):
            raise AssertionError(f"{peer}: a singular value differs by {error.max():.1e} of the largest")

    return check


def main() -> None:
    benchmark = Benchmark("singular_values", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256, 512), (64,)):
        maps = attention[: MOST.get(n, len(attention))]
        wide = maps.double()
        peers: dict[str, Any] = {
            "torch": lambda a=wide: torch.linalg.svdvals(a),
            "numpy": lambda a=wide: np.linalg.svd(a.numpy(), compute_uv=False),
        }
        if installed("scipy"):
            from scipy.linalg import svdvals

            peers["scipy"] = lambda a=wide: np.stack([svdvals(m, check_finite=False) for m in a.numpy()])
        common: dict[str, Any] = {"against": "torch", "reads": maps.nbytes, "facts": {"n": n}}
        benchmark.compare(
            name,
            len(maps),
            lambda a=maps: asc.singular_values(a),
            peers,
            agree=agree(1e-12),
            target=TARGETS[n],
            limit=10.0,
            multiply_adds=len(maps) * 4 * n**3 / 3,  # of a bidiagonal form; fast has other arithmetic
            **common,
        )
        benchmark.compare(
            f"{name} fast",
            len(maps),
            lambda a=maps: asc.singular_values(a, precision="fast"),
            {"torch": peers["torch"]},
            agree=agree(1e-5),
            **common,
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
