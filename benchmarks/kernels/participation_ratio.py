# SPDX-License-Identifier: MIT
"""The participation ratio of singular energies, against the one line ‖A‖_F⁴/‖AᵀA‖_F² in torch and NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps


def one_line(a: torch.Tensor) -> torch.Tensor:
    return a.square().sum((-1, -2)).square() / (a.mT @ a).square().sum((-1, -2))


def numpy_line(a: np.ndarray) -> np.ndarray:
    return (a * a).sum((-1, -2)) ** 2 / ((a.swapaxes(-1, -2) @ a) ** 2).sum((-1, -2))


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    # float32 in torch's one line; ours and NumPy's are float64
    tolerance = 1e-4 if peer == "torch float32" else 1e-10
    error = np.abs(ours.numpy() / np.asarray(theirs, dtype=np.float64) - 1).max()
    if not error <= tolerance:
        raise AssertionError(f"{peer}: participation ratios differ by {error:.1e}")


def main() -> None:
    benchmark = Benchmark("participation_ratio", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256, 512), (64,)):
        wide = attention.double()
        causal = not bool(attention.triu(1).any())
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.participation_ratio(a),
            {
                "torch float32": lambda a=attention: one_line(a),
                "torch float64": lambda a=wide: one_line(a),
                "numpy float64": lambda a=wide: numpy_line(a.numpy()),
            },
            agree=agree,
            target=3.0,
            limit=5.0,
            against="torch float32",
            reads=attention.nbytes,
            # a symmetric product: half of n³, and a third of that of a causal map
            multiply_adds=len(attention) * n**3 / (6 if causal else 2),
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
