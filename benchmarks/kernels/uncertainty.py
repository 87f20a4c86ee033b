# SPDX-License-Identifier: MIT
"""Position and frequency entropies of every row of every head, against a loop over rows with NumPy's FFT."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import entr

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps

TARGET = 30.0


def loop(maps: np.ndarray[Any, Any], causal: bool) -> np.ndarray[Any, Any]:
    """The entropies and the variance of position, row by row; not the variance of frequency."""
    out = np.full((*maps.shape[:2], 3), np.nan)
    for head, attention_map in enumerate(maps):
        for i in range(len(attention_map)):
            x = attention_map[i, : i + 1] if causal else attention_map[i]
            if len(x) < 32:
                continue
            p = x / x.sum()
            power = np.abs(np.fft.fft(np.sqrt(p), norm="ortho")) ** 2
            t = np.arange(len(x))
            mean = (t * p).sum()
            out[head, i] = entr(p).sum(), entr(power).sum(), ((t - mean) ** 2 * p).sum()
    return out


def agree(peer: str, ours: Any, theirs: Any) -> None:
    few = len(theirs)
    for field, expected in zip(
        (ours.position_entropy, ours.spectral_entropy, ours.position_variance), theirs.T, strict=True
    ):
        np.testing.assert_allclose(field[:few].T, expected, rtol=1e-8, atol=1e-8, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("uncertainty", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (64, 128, 256, 512), (64,)):
        causal = bool((attention.triu(1) == 0).all())
        few = attention[:2].double().numpy()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.spectral_uncertainty(a),
            {"numpy loop": lambda a=few, c=causal: loop(a, c)},
            agree=agree,
            peer_maps={"numpy loop": len(few)},
            reads=attention.nbytes,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
