# SPDX-License-Identifier: MIT
"""Attention entropy of every query, against vectorised torch and SciPy; in float32, `fast`, beside it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.special import entr

import attnscope as asc
from harness import Benchmark
from maps import wanted_maps


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    theirs = torch.as_tensor(theirs)
    # torch adds up in the maps' own type
    eps = torch.finfo(theirs.dtype).eps
    tolerance = 1e-12 if theirs.dtype == torch.float64 else 200 * eps
    np.testing.assert_allclose(ours.numpy(), theirs.double().numpy(), rtol=0, atol=tolerance, err_msg=peer)


def agree_fast(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    theirs = torch.as_tensor(theirs)
    tolerance = 1e-5 if theirs.dtype == torch.float64 else 200 * torch.finfo(theirs.dtype).eps
    np.testing.assert_allclose(ours.numpy(), theirs.double().numpy(), rtol=1e-5, atol=tolerance, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("entropy", __doc__ or "")
    for n, name, attention in wanted_maps(
        benchmark, (16, 32, 64, 128, 256, 512, 1024, 2048), (64,), with_variants=True
    ):
        wide = attention.double()
        benchmark.compare(
            name,
            len(attention),
            lambda a=attention: asc.attention_entropy(a),
            {
                "torch entr": lambda a=attention: torch.special.entr(a).sum(-1),
                "torch log": lambda a=attention: -(a * a.clamp_min(torch.finfo(a.dtype).tiny).log()).sum(-1),
                "torch entr float64": lambda a=wide: torch.special.entr(a).sum(-1),
                "scipy float64": lambda a=wide: entr(a.numpy()).sum(-1),
            },
            agree=agree,
            reads=attention.nbytes,
            facts={"n": n},
        )
        if attention.dtype != torch.float64:
            benchmark.compare(
                f"{name} fast",
                len(attention),
                lambda a=attention: asc.attention_entropy(a, precision="fast"),
                {
                    "ours exact": lambda a=attention: asc.attention_entropy(a),
                    "torch entr": lambda a=attention: torch.special.entr(a).sum(-1),
                    "torch log": lambda a=attention: (
                        -(a * a.clamp_min(torch.finfo(a.dtype).tiny).log()).sum(-1)
                    ),
                },
                agree=agree_fast,
                reads=attention.nbytes,
                facts={"n": n, "precision": "fast"},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
