# SPDX-License-Identifier: MIT
"""Lookback ratios of the second half of each text, against vectorised torch in the maps' own type."""

from __future__ import annotations

import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps

TARGET = 10.0


def torch_means(attention: torch.Tensor, start: int, stop: int) -> list[torch.Tensor]:
    """Mean attention to the context and to the rest, of the rows that predict the answer."""
    n = attention.shape[-1]
    finite = attention.isfinite().flatten(1).all(1)
    upper = torch.ones(n, n, dtype=torch.bool).triu(1)
    causal = ~(attention.ne(0) & upper).flatten(1).any(1)
    rows = attention[:, start - 1 : stop - 1]
    query = torch.arange(start - 1, stop - 1)
    end = torch.where(causal[:, None], query + 1, n)
    seen = torch.arange(n) < end[..., None]
    visible = rows * seen
    before = visible[..., :start].sum(-1) / end.clamp_max(start)
    behind = visible[..., start:].sum(-1) / (end - start).clamp_min(0)
    ratio = before / (before + behind)
    return [torch.where(finite, ratio.nanmean(-1), torch.nan)]


def agree(peer: str, ours: asc.Lookback, theirs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(
        ours.value.float(), theirs[0].float(), rtol=1e-4, atol=1e-5, equal_nan=True, msg=peer
    )


def main() -> None:
    benchmark = Benchmark("lookback", __doc__ or "")
    for n in sizes(benchmark, (64, 128, 512), (64,)):
        for name, attention in all_maps(n, regimes=("local", "diffuse", "peaky")).items():
            benchmark.compare(
                name,
                len(attention),
                lambda a=attention, n=n: asc.lookback(a, (n // 2, n)),
                {"torch means": lambda a=attention, n=n: torch_means(a, n // 2, n)},
                agree=agree,
                reads=attention.nbytes,
                target=TARGET if n == 512 else None,
                facts={"n": n},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
