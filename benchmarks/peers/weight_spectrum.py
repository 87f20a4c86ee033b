# SPDX-License-Identifier: MIT
"""The power law of a matrix's spectrum, against WeightWatcher's search on the same singular values."""

from __future__ import annotations

import importlib.util
import sys
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np
import torch

from attnscope.metrics.weights.weight_spectrum import _fit_tail
from harness import Benchmark, sizes

TARGET = 20.0


def weightwatcher_fit() -> Any:
    """Return WeightWatcher's class of fits, without what the package imports."""
    folder = metadata.distribution("weightwatcher").locate_file("weightwatcher")
    package = ModuleType("weightwatcher")
    package.__path__ = [str(folder)]
    sys.modules["weightwatcher"] = package
    return importlib.import_module("weightwatcher.WW_powerlaw").WWFit


def agree(peer: str, ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose([ours.alpha, ours.ks], [theirs.alpha, theirs.D], rtol=1e-8, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("weight_spectrum", __doc__ or "")
    fit = weightwatcher_fit()
    for n in sizes(benchmark, (256, 1024), (256,)):
        matrix = torch.randn(n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        values = np.sort(torch.linalg.svdvals(matrix).square().numpy())
        benchmark.compare(
            f"gaussian n={n}",
            1,
            lambda v=values: _fit_tail(v, True),
            {"weightwatcher": lambda v=values: fit(v)},
            agree=agree,
            reads=values.nbytes,
            target=TARGET if n == 1024 else None,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
