# SPDX-License-Identifier: MIT
"""Attention entropy of every query, against vectorised torch and SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import entr

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    tolerance = 2e-5 if "float32" in peer else 1e-12
    np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=0, atol=tolerance, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("entropy", __doc__ or "")
    for n, name, attention in wanted_maps(benchmark, (32, 64, 128, 256, 512, 1024, 2048), (64,)):
        wide = attention.double()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.attention_entropy(a),
            {
                "torch entr float32": lambda a=attention: torch.special.entr(a).sum(-1),
                "torch log float32": lambda a=attention: -(a * a.clamp_min(1e-37).log()).sum(-1),
                "torch entr float64": lambda a=wide: torch.special.entr(a).sum(-1),
                "scipy float64": lambda a=wide: entr(a.numpy()).sum(-1),
            },
            agree=agree,
            facts={"n": n},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
