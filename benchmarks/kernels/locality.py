# SPDX-License-Identifier: MIT
"""Local over global attention, against torch with a band mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    # In its own type torch's ratio is rounded, and 1e46 is infinite; its range ends at 65504 in float16.
    type_of_sums = theirs.dtype
    tolerance = 1e-12 if type_of_sums == torch.float64 else 1e3 * torch.finfo(type_of_sums).eps
    if type_of_sums == torch.float16:
        inside = theirs.isfinite() & (theirs < 1e4)
        ours, theirs = ours[inside], theirs[inside]
    np.testing.assert_allclose(ours.to(type_of_sums).double(), theirs.double(), rtol=tolerance, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("locality", __doc__ or "")
    for n, name, attention in wanted_maps(
        benchmark, (16, 32, 64, 128, 256, 512, 1024, 2048), (64,), with_variants=True
    ):
        place = torch.arange(n)
        near = (place[:, None] - place).abs() <= 8
        wide = attention.double()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.local_global_ratio(a),
            {
                "torch": lambda a=attention, m=near: (a * m).sum((-1, -2)) / (a * ~m).sum((-1, -2)),
                "torch float64": lambda a=wide, m=near: (a * m).sum((-1, -2)) / (a * ~m).sum((-1, -2)),
            },
            agree=agree,
            reads=attention.nbytes,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
