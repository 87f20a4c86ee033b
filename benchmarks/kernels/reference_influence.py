# SPDX-License-Identifier: MIT
"""Influence of reference tokens on what heads write, per value head and with one shared state a layer."""

from __future__ import annotations

from typing import Any

import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

HEADS = 8
WIDTH = 64


def vectorised(attention: torch.Tensor, states: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    states = states.expand(*attention.shape[:-2], *states.shape[-2:])
    part = (attention * reference) @ states
    rest = (attention * ~reference) @ states
    output = part + rest
    return torch.stack(
        [
            part.norm(dim=-1) / output.norm(dim=-1),
            torch.cosine_similarity(part, output, dim=-1, eps=0),
            1 - torch.cosine_similarity(output, rest, dim=-1, eps=0),
        ]
    )


def agree(peer: str, ours: Any, theirs: torch.Tensor) -> None:
    tolerance = 2e-5 if "float32" in peer else 1e-10
    result = torch.stack(list(ours))
    is_defined = ~result.isnan() & ~theirs.isnan()
    # Where outputs nearly vanish float32 has few digits left: compare the bulk there.
    error = (result - theirs)[is_defined].abs()
    worst = error.quantile(0.99) if "float32" in peer else error.max()
    if not float(worst) <= tolerance:
        raise AssertionError(f"{peer}: influences differ by {float(worst):.1e}")


def main() -> None:
    benchmark = Benchmark("reference_influence", __doc__ or "")
    for n in sizes(benchmark, (32, 64, 128, 256, 512), (64,)):
        for name, attention in all_maps(n, regimes=("sink", "bidirectional")).items():
            heads = attention.reshape(-1, HEADS, n, n)
            reference = torch.arange(n) == 0
            generator = torch.Generator().manual_seed(n)
            for case, count, width in (("per head", HEADS, WIDTH), ("shared", 1, WIDTH * HEADS)):
                states = torch.randn(len(heads), count, n, width, generator=generator)
                wide, wide_states = heads.double(), states.double()
                benchmark.compare(
                    f"{case}: {name}",
                    len(attention),
                    lambda a=heads, s=states, r=reference: asc.reference_influence(a, s, r),
                    {
                        "torch float32": lambda a=heads, s=states, r=reference: vectorised(a, s, r),
                        "torch float64": lambda a=wide, s=wide_states, r=reference: vectorised(a, s, r),
                    },
                    agree=agree,
                    target=10.0,
                    reads=attention.nbytes,
                    facts={"n": n, "width": width, "states": count, "heads": HEADS},
                )
    benchmark.finish()


if __name__ == "__main__":
    main()
