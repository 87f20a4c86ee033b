# SPDX-License-Identifier: MIT
"""Size, rounding and direction of a weight change in one read of both matrices, against vectorised torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes

TARGET = 20.0
BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}


def vectorised(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """The same seven numbers in whole-tensor operations, sums in float64."""
    old, new = before.float(), after.float()
    delta = new - old
    _, exponent = torch.frexp(new)
    steps = torch.ldexp(torch.ones_like(new), exponent - 1 - BITS[before.dtype]).double().square().sum()
    energy, before_energy = delta.double().square().sum(), old.double().square().sum()
    return torch.stack(
        [
            energy,
            before_energy,
            (delta == 0).double().mean(),
            (energy / steps).sqrt(),
            steps / 12 / energy,
            (delta.double() * old).sum() / before_energy,
            delta.abs().max().double(),
        ]
    )


def agree(peer: str, ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(torch.stack(list(ours)), theirs, rtol=1e-9, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("delta_statistics", __doc__ or "")
    for rows in sizes(benchmark, (256, 1024, 4096), (1024,)):
        for dtype in (torch.bfloat16, torch.float32):
            name = f"{str(dtype).removeprefix('torch.')} n={rows}"
            if not benchmark.wants(name):
                continue
            shape = (rows, 11008 * rows // 4096)
            draw = torch.Generator().manual_seed(0)
            before = 0.02 * torch.randn(shape, generator=draw)
            after = (before + 1e-4 * torch.randn(shape, generator=draw)).to(dtype)
            before = before.to(dtype)
            benchmark.compare(
                name,
                1,
                lambda a=before, b=after: asc.delta_statistics(a, b),
                {"torch": lambda a=before, b=after: vectorised(a, b)},
                agree=agree,
                reads=2 * before.nbytes,
                target=TARGET,
                facts={"n": rows, "bytes": (size := 2 * before.numel() * before.element_size())},
            )
            row = benchmark.rows[-1]
            row["gigabytes_per_second"] = round(size / row["best_ms"]["attnscope"] / 1e6, 2)
            print(f"{name:<28} {row['gigabytes_per_second']} GB/s read")
    benchmark.finish()


if __name__ == "__main__":
    main()
