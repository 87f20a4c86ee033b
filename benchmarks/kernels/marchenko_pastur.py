# SPDX-License-Identifier: MIT
"""The Marchenko–Pastur deviation `ks` of each map, and every field of `marchenko_pastur`.

Against singular values alone and `ks` in torch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps

TARGETS = {128: 8.0}
MOST = {256: 16, 512: 8}
# Up to this size every field is measured too: beyond it singular values are all that counts.
LARGEST_FIELDS = 128
# Up to this size "fast" is the exact way.
LARGEST_EXACT = 256


def standardized(a: torch.Tensor) -> torch.Tensor:
    """Rows over their visible keys, vectorised; constant rows (a causal map's first) become 0."""
    n = a.shape[-1]
    visible = torch.ones(n, n, dtype=torch.float64)
    if a.triu(1).eq(0).all():
        visible = visible.tril()
    count = visible.sum(-1)
    centred = (a - (a.sum(-1) / count)[..., None]) * visible
    spread = (centred.square().sum(-1) / count).sqrt()[..., None]
    return torch.where(spread > 1e-12, centred / spread, 0.0)


def distances(a: torch.Tensor, law: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """ks of the kept rows' spectrum against a tabulated law, as one would write it in torch."""
    n = a.shape[-1]
    rows = standardized(a)
    nonzero_rows = rows.ne(0).any(-1).sum(-1, keepdim=True)
    values = torch.linalg.svdvals(rows).square().flip(-1) / n
    points, cdf = law
    place = torch.arange(n, dtype=torch.float64) - (n - nonzero_rows)  # among the kept, from 0
    floor = 1e-12 * points[-1]
    counted = (place >= 0) & (values >= floor)
    at = interpolated(values, points, cdf)
    distance = torch.maximum(((place + 1) / nonzero_rows - at).abs(), (place / nonzero_rows - at).abs())
    below = ((place >= 0) & (values < floor)).sum(-1, keepdim=True) / nonzero_rows
    at_floor = (below - interpolated(floor[None], points, cdf)).abs()[..., 0]
    return torch.maximum(torch.where(counted, distance, 0.0).amax(-1), at_floor)


def interpolated(x: torch.Tensor, points: torch.Tensor, cdf: torch.Tensor) -> torch.Tensor:
    """F(x) between the points of the table, linear in log x, as the law is near 0."""
    index = torch.searchsorted(points, x).clamp(1, len(points) - 1)
    low, high = points[index - 1].log(), points[index].log()
    share = ((x.clamp_min(1e-300).log() - low) / (high - low)).clamp(0.0, 1.0)
    return cdf[index - 1] + (cdf[index] - cdf[index - 1]) * share


def triangular_law() -> tuple[torch.Tensor, torch.Tensor]:
    v = torch.linspace(math.pi - 1e-3, 1e-9, 200_000, dtype=torch.float64)
    points = (v.sin() / v) * (v * v.cos() / v.sin()).exp()
    cdf = 1 - v / math.pi + v.sin().square() / (math.pi * v)
    keep = torch.cat([torch.ones(1, dtype=torch.bool), points.diff() > 0])
    return points[keep], cdf[keep]


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    if peer != "torch, whole":
        return  # only a part of the work, timed for scale; singular_values.py compares it
    error = np.abs(ours.numpy() - np.asarray(theirs)).max()
    if not error <= 1e-4:
        raise AssertionError(f"{peer}: distances differ by {error:.1e}")


def main() -> None:
    benchmark = Benchmark("marchenko_pastur", __doc__ or "")
    law = triangular_law()
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256, 512), (64,)):
        maps = attention[: MOST.get(n, len(attention))]
        wide = maps.double()
        peers: dict[str, Any] = {"torch svdvals": lambda a=wide: torch.linalg.svdvals(a)}
        if "bidirectional" not in name:
            peers["torch, whole"] = lambda a=wide: distances(a, law)
        common: dict[str, Any] = {
            "agree": agree,
            "against": "torch svdvals",
            "reads": maps.nbytes,
            # of a Gram matrix and its tridiagonal form; fast has other arithmetic
            "multiply_adds": len(maps) * n**3 * ((1 / 2 if "bidirectional" in name else 1 / 6) + 2 / 3),
            "facts": {"n": n},
        }
        benchmark.compare(
            name,
            len(maps),
            lambda a=maps: asc.marchenko_pastur_deviation(a),
            peers,
            target=TARGETS.get(n),
            limit=13.0,
            **common,
        )
        if n <= LARGEST_FIELDS:
            for suffix, precision in (("", "exact"), (" fast", "fast")):
                benchmark.compare(
                    f"{name} every field{suffix}",
                    len(maps),
                    lambda a=maps, p=precision: asc.marchenko_pastur(a, precision=p).ks,
                    peers,
                    **common,
                )
        if n > LARGEST_EXACT:
            benchmark.compare(
                f"{name} fast",
                len(maps),
                lambda a=maps: asc.marchenko_pastur_deviation(a, precision="fast"),
                peers,
                **common,
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
