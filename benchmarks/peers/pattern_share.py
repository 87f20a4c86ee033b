# SPDX-License-Identifier: MIT
"""Six patterns of each map in one read, against vectorised torch with a mask for each pattern."""

from __future__ import annotations

import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

TARGET = 10.0
PATTERNS = ("first", "self", "previous", "next", "duplicate", "induction")


def pattern_masks(tokens: torch.Tensor) -> torch.Tensor:
    """The six patterns [6, n, n] before visibility."""
    n = len(tokens)
    query, key = torch.arange(n)[:, None], torch.arange(n)[None]
    copies = (tokens[:, None] == tokens[None]) & (query != key)
    behind = torch.zeros(n, n, dtype=torch.bool)
    behind[:, 1:] = copies[:, :-1]
    positions = [(key == 0).expand(n, n), key == query, key == query - 1, key == query + 1]
    return torch.stack([*positions, copies, behind & (query != key)])


def torch_masks(attention: torch.Tensor, masks: torch.Tensor) -> list[torch.Tensor]:
    """Share, uniform share and distance of each pattern, in the maps' own type."""
    n = attention.shape[-1]
    upper = torch.ones(n, n, dtype=torch.bool).triu(1)
    causal = ~(attention.ne(0) & upper).flatten(1).any(1)
    visible = torch.where(causal[:, None, None], ~upper, torch.ones_like(upper))
    fields = []
    for mask in masks:
        targets = visible & mask
        count = targets.sum(-1)
        matching = count > 0
        queries = matching.sum(-1)
        share = (attention * targets).sum((-2, -1)) / queries
        uniform = (count / visible.sum(-1)).sum(-1) / queries
        ideal = targets / count.clamp_min(1)[..., None]
        apart = (attention - ideal).square().sum((-2, -1))
        together = attention.square().sum((-2, -1)) + ideal.square().sum((-2, -1))
        fields.append(torch.stack([share, uniform, (apart / together).sqrt()]))
    finite = attention.isfinite().flatten(1).all(1)
    return [torch.where(finite[:, None], torch.stack(fields, -1), torch.nan)]


def agree(peer: str, ours: asc.PatternShare, theirs: list[torch.Tensor]) -> None:
    share, uniform, distance = theirs[0].double()
    defined = ours.queries > 0
    for our, other in ((ours.share, share), (ours.uniform, uniform), (ours.distance, distance)):
        torch.testing.assert_close(our[defined], other[defined], rtol=1e-4, atol=1e-4, msg=peer)


def main() -> None:
    benchmark = Benchmark("pattern_share", __doc__ or "")
    for n in sizes(benchmark, (64, 128, 512), (64,)):
        tokens = torch.randint(0, n // 4, (n,), generator=torch.Generator().manual_seed(n))
        masks = pattern_masks(tokens)
        for name, attention in all_maps(n, regimes=("local", "diffuse", "peaky")).items():
            benchmark.compare(
                name,
                len(attention),
                lambda a=attention, t=tokens: asc.pattern_share(a, PATTERNS, tokens=t),
                {"torch masks": lambda a=attention, m=masks: torch_masks(a, m)},
                agree=agree,
                reads=attention.nbytes,
                target=TARGET,
                facts={"n": n},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
