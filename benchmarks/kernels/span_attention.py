# SPDX-License-Identifier: MIT
"""Attention of a word in each map, against vectorised torch with masks."""

from __future__ import annotations

import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

TARGET = 25.0


def torch_masks(attention: torch.Tensor, spans: torch.Tensor, special: torch.Tensor) -> list[torch.Tensor]:
    """The eight fields from masks of the span, of special keys and of visible entries."""
    n = attention.shape[-1]
    finite = attention.isfinite().flatten(1).all(1)
    upper = torch.ones(n, n, dtype=torch.bool).triu(1)
    causal = ~(attention.ne(0) & upper).flatten(1).any(1)
    visible = torch.where(causal[:, None, None], ~upper, torch.ones_like(upper))
    token = torch.arange(n)
    inside = (token >= spans[:, :1]) & (token < spans[:, 1:])
    wide = attention.double() * visible
    m = inside.sum(1).double()
    mass = (wide * inside[:, None]).sum(-1)
    even = (visible & inside[:, None]).sum(-1).double() / visible.sum(-1)
    share, uniform = ((rows * inside).sum(1) / m for rows in (mass, even))
    diagonal = (wide.diagonal(dim1=1, dim2=2) * inside).sum(1) / m
    marked = special & ~inside
    rest = ~special & ~inside
    to_special, to_rest = (((wide * keys[:, None]).sum(-1) * inside).sum(1) / m for keys in (marked, rest))
    others = ~inside & (visible & inside[:, None]).any(-1)
    received, received_even = ((rows * others).sum(1) / others.sum(1).double() for rows in (mass, even))
    fields = [share, uniform, share / uniform, diagonal, to_special, to_rest, received, received_even]
    return [torch.where(finite, field, torch.nan) for field in fields]


def agree(peer: str, ours: asc.SpanAttention, theirs: list[torch.Tensor]) -> None:
    for our, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, other, rtol=1e-12, atol=1e-12, equal_nan=True, msg=peer)


def main() -> None:
    benchmark = Benchmark("span_attention", __doc__ or "")
    for n in sizes(benchmark, (64, 256, 512), (64,)):
        for name, attention in all_maps(n, regimes=("local", "diffuse", "peaky")).items():
            start = torch.arange(len(attention)) % (n - 4) + 1
            spans = torch.stack([start, start + 2], 1)
            special = torch.arange(n)[None].expand(len(attention), n) == 0
            benchmark.compare(
                name,
                len(attention),
                lambda a=attention, s=spans, k=special: asc.span_attention(a, s, special=k),
                {"torch masks": lambda a=attention, s=spans, k=special: torch_masks(a, s, k)},
                agree=agree,
                reads=attention.nbytes,
                target=TARGET if n == 512 else None,
                facts={"n": n},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
