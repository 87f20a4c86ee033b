# SPDX-License-Identifier: MIT
"""Measures of queries and keys, against torch's attention output and vectorised torch on the same tensors.

The peer `sdpa` computes what a layer computes anyway: measuring is to cost less than that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnscope as asc
from harness import Benchmark

#: Most tokens of which vectorised torch holds a map.
MOST_OF_MAP = 4096


def measure_map(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and what keys receive, from a map that vectorised torch makes."""
    scores = query @ key.mT * query.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.special.entr(weights).sum(-1), weights.sum(-2)


def agree(peer: str, ours: Any, theirs: Any) -> None:
    """Raise if the numbers of vectorised torch differ; torch's attention gives an output, not measures."""
    if peer == "sdpa":
        return
    for our, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our.numpy(), other.numpy(), rtol=1e-3, atol=1e-4, err_msg=peer)


def main() -> None:
    """Compare one pass that gives entropy and incoming attention."""
    benchmark = Benchmark("lazy_attention", __doc__ or "")
    generator = torch.Generator().manual_seed(0)
    for n in (64, 128, 256, 512, 1024, 4096, 16384):
        heads = max(1, min(32, 8192 // n))
        query, key, value = (torch.randn(1, heads, n, 64, generator=generator) for _ in range(3))
        lazy = asc.LazyAttention(query, key)
        peers = {
            "sdpa": lambda q=query, k=key, v=value: scaled_dot_product_attention(q, k, v, is_causal=True)
        }
        if n <= MOST_OF_MAP:
            peers["torch"] = lambda q=query, k=key: measure_map(q, k)
        benchmark.compare(
            f"entropy and incoming attention n={n}",
            heads,
            lambda a=lazy: a.take([("entropy", None), ("incoming", None)]),
            peers,
            agree=agree,
            target=2.0 if n >= 512 else None,
            against="sdpa",
            facts={"n": n, "width": 64},
        )
    benchmark.finish()


if __name__ == "__main__":
    main()
