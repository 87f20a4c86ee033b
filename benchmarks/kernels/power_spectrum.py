# SPDX-License-Identifier: MIT
"""Power spectra of every row of every head, against a loop over rows with SciPy's periodogram."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.signal import periodogram

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps

TARGET = 30.0


def fast_length(count: int) -> int:
    """The transform length of the definition."""
    while count % 4 or set(_primes(count)) - {2, 3, 5}:
        count += 1
    return count


def _primes(n: int) -> list[int]:
    result, p = [], 2
    while n > 1:
        while n % p == 0:
            result.append(p)
            n //= p
        p += 1
    return result


def loop(maps: np.ndarray[Any, Any], causal: bool, lengths: dict[int, int]) -> np.ndarray[Any, Any]:
    """Band shares, selectivity, flatness and entropy, row by row, as a study's script does it."""
    out = np.full((*maps.shape[:2], 6), np.nan)
    for head, attention_map in enumerate(maps):
        for i in range(len(attention_map)):
            x = attention_map[i, : i + 1] if causal else attention_map[i]
            if len(x) < 32:
                continue
            f, p = periodogram(x, window="hann", nfft=lengths[len(x)], detrend=False, scaling="spectrum")
            p = p / p.sum()
            p[p <= 1e-28] = 0
            logs = np.log(p, where=p > 0, out=np.full_like(p, -np.inf))
            flat = np.exp(logs.mean()) / p.mean()
            entropy = -(p[p > 0] * logs[p > 0]).sum() / np.log(2)
            low, high = p[f < 0.125].sum(), p[f >= 0.375].sum()
            out[head, i] = low, 1 - low - high, high, p.max(), flat, entropy
    return out


def agree(peer: str, ours: Any, theirs: Any) -> None:
    our_fields = torch.stack(
        [ours.low, ours.mid, ours.high, ours.selectivity, ours.flatness, ours.entropy], -1
    )
    np.testing.assert_allclose(our_fields[: len(theirs)].numpy(), theirs, rtol=1e-6, atol=1e-9, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("power_spectrum", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (64, 128, 256, 512), (64,)):
        lengths = {m: fast_length(m) for m in range(32, n + 1)}
        causal = bool((attention.triu(1) == 0).all())
        few = attention[:2].double().numpy()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.power_spectrum(a, bands=0),
            {"scipy loop": lambda a=few, c=causal, k=lengths: loop(a, c, k)},
            agree=agree,
            peer_maps={"scipy loop": len(few)},
            target=TARGET,
            reads=attention.nbytes,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
