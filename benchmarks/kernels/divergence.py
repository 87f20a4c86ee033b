# SPDX-License-Identifier: MIT
"""Divergence of a layer's heads from their mean, and without the sink, against vectorised torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

HEADS = 8


def divergence(a: torch.Tensor) -> torch.Tensor:
    mean = a.mean(-3, keepdim=True)
    return (torch.xlogy(a, a) - torch.xlogy(a, mean)).sum(-1).mean(-1)


def removal(a: torch.Tensor) -> torch.Tensor:
    """kl_reduction without key 0; rows that see key 0 alone are excluded."""
    copy = a.clone()
    copy[..., 0] = 0
    mass = copy.sum(-1, keepdim=True)
    alive = mass > 0
    surviving = copy / torch.where(alive, mass, 1.0)
    before = (torch.xlogy(a, a) - torch.xlogy(a, a.mean(-3, keepdim=True))).sum(-1)
    number = alive.sum(-3, keepdim=True).clamp(min=1)
    mean = surviving.sum(-3, keepdim=True) / number
    after = (torch.xlogy(surviving, surviving) - torch.xlogy(surviving, mean)).sum(-1)
    alive = alive.squeeze(-1)
    difference = torch.where(alive, before - after, 0.0)
    return (difference.sum(-1) / alive.sum(-1)).mean(-1)


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    tolerance = 2e-5 if "float32" in peer else 1e-10
    np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=0, atol=tolerance, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("divergence", __doc__ or "")
    for n in sizes(benchmark, (32, 64, 128, 256, 512), (64,)):
        for name, attention in all_maps(
            n, regimes=("sink", "peaky", "bidirectional"), models=("stories260K",)
        ).items():
            heads = attention.reshape(-1, HEADS, n, n)
            wide = heads.double()
            for case, ours, theirs in (
                ("divergence", asc.head_divergence, divergence),
                (
                    "removal",
                    lambda a: asc.sink_removal(a, [0], keep_attention=False).kl_reduction,
                    removal,
                ),
            ):
                benchmark.compare(
                    f"{case}: {name}",
                    len(attention),
                    lambda a=heads, f=ours: f(a),
                    {
                        "torch float32": lambda a=heads, f=theirs: f(a),
                        "torch float64": lambda a=wide, f=theirs: f(a),
                    },
                    agree=agree,
                    reads=attention.nbytes,
                    facts={"n": n, "heads": HEADS},
                )
    benchmark.finish()


if __name__ == "__main__":
    main()
