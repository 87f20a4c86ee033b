# SPDX-License-Identifier: MIT
"""Alignment of attention with the geometry of states, per value head and with one shared state a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

HEADS = 8
WIDTH = 64


def vectorised(attention: torch.Tensor, states: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    unit = torch.nn.functional.normalize(states, dim=-1)
    cosines = (unit @ unit.mT).expand(attention.shape)
    x, y = attention[..., pairs], cosines[..., pairs]
    x, y = x - x.mean(-1, keepdim=True), y - y.mean(-1, keepdim=True)
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


def masked(attention: torch.Tensor, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same with a 0/1 mask in place of gathered pairs."""
    unit = torch.nn.functional.normalize(states, dim=-1)
    cosines = unit @ unit.mT
    count = mask.sum()
    x = (attention - (attention * mask).sum((-1, -2), keepdim=True) / count) * mask
    y = (cosines - (cosines * mask).sum((-1, -2), keepdim=True) / count) * mask
    xx, yy = x.square().sum((-1, -2)), y.square().sum((-1, -2))
    return (x * y).sum((-1, -2)) / (xx * yy).sqrt()


def agree(peer: str, ours: torch.Tensor, theirs: Any) -> None:
    tolerance = 1e-4 if "float32" in peer else 1e-10
    np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), rtol=0, atol=tolerance, err_msg=peer)


def main() -> None:
    benchmark = Benchmark("alignment", __doc__ or "")
    for n in sizes(benchmark, (32, 64, 128, 256, 512), (64,)):
        for name, attention in all_maps(n, regimes=("sink", "bidirectional")).items():
            heads = attention.reshape(-1, HEADS, n, n)
            pairs = ~torch.eye(n, dtype=torch.bool)
            if not bool(attention[0].triu(1).any()):
                pairs = pairs.tril()
            generator = torch.Generator().manual_seed(n)
            for case, count, width in (("per head", HEADS, WIDTH), ("shared", 1, WIDTH * HEADS)):
                states = torch.randn(len(heads), count, n, width, generator=generator)
                mask, wide, wide_states = pairs.float(), heads.double(), states.double()
                benchmark.compare(
                    f"{case}: {name}",
                    len(attention),
                    lambda a=heads, s=states: asc.geometric_semantic_alignment(a, s),
                    {
                        "torch float32": lambda a=heads, s=states, p=pairs: vectorised(a, s, p),
                        "torch masked float32": lambda a=heads, s=states, m=mask: masked(a, s, m),
                        "torch float64": lambda a=wide, s=wide_states, p=pairs: vectorised(a, s, p),
                    },
                    agree=agree,
                    target=10.0,
                    reads=attention.nbytes,
                    # cosines of the visible pairs, computed once for heads that share a state
                    multiply_adds=len(heads) * count * float(mask.sum()) * width,
                    facts={"n": n, "width": width, "states": count, "heads": HEADS},
                )
    benchmark.finish()


if __name__ == "__main__":
    main()
