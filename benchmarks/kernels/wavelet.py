# SPDX-License-Identifier: MIT
"""Wavelet energies and entropies of every row of every head, against a loop over rows with PyWavelets."""

from __future__ import annotations

from typing import Any

import numpy as np

import attnscope as asc
from harness import Benchmark, installed
from maps import wanted_maps

TARGET = 30.0


def loop(maps: np.ndarray[Any, Any], causal: bool) -> np.ndarray[Any, Any]:
    """Four energies, their entropy and the reconstruction error, row by row."""
    import pywt

    out = np.full((*maps.shape[:2], 6), np.nan)
    for head, attention_map in enumerate(maps):
        for i in range(len(attention_map)):
            x = attention_map[i, : i + 1] if causal else attention_map[i]
            if len(x) < 32:
                continue
            coefficients = pywt.wavedec(x, "db2", mode="periodization", level=3)
            energies = np.array([(c**2).sum() for c in coefficients])
            p = energies / energies.sum()
            q = p[p > 0]
            again = pywt.waverec(coefficients, "db2", mode="periodization")[: len(x)]
            error = np.linalg.norm(x - again) / np.linalg.norm(x)
            for c, e in zip(coefficients, energies, strict=True):
                power = c[c != 0] ** 2 / (e or 1.0)
                _ = -(power * np.log2(power)).sum()
            out[head, i] = *p, -(q * np.log2(q)).sum(), error
    return out


def agree(peer: str, ours: Any, theirs: Any) -> None:
    few = len(theirs)
    np.testing.assert_allclose(ours.energy[:few], theirs[..., :4], rtol=0, atol=1e-12, err_msg=peer)
    np.testing.assert_allclose(ours.scale_entropy[:few], theirs[..., 4], rtol=0, atol=1e-12, err_msg=peer)
    assert np.nanmax(theirs[..., 5]) < 1e-11  # PyWavelets' own filters are rounded to 1e-12


def main() -> None:
    benchmark = Benchmark("wavelet", __doc__ or "")
    peers = installed("pywt")
    for n, name, attention in wanted_maps(benchmark, (64, 128, 256, 512), (64,)):
        causal = bool((attention.triu(1) == 0).all())
        few = attention[:2].double().numpy()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.wavelet_transform(a),
            {"pywt loop": lambda a=few, c=causal: loop(a, c)} if peers else {},
            agree=agree,
            peer_maps={"pywt loop": len(few)},
            target=TARGET,
            reads=attention.nbytes,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
