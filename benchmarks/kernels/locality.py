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
    single = "float32" in peer
    # A ratio of 1e46 is infinite in float32.
    our_values = ours.float() if single else ours
    np.testing.assert_allclose(our_values, theirs, rtol=1e-4 if single else 1e-12, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("locality", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (64, 128, 256, 512), (64,)):
        place = torch.arange(n)
        near = (place[:, None] - place).abs() <= 8
        wide = attention.double()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.local_global_ratio(a),
            {
                "torch float32": lambda a=attention, m=near: (a * m).sum((-1, -2)) / (a * ~m).sum((-1, -2)),
                "torch float64": lambda a=wide, m=near: (a * m).sum((-1, -2)) / (a * ~m).sum((-1, -2)),
            },
            agree=agree,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
