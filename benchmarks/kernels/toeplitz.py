# SPDX-License-Identifier: MIT
"""Scores split by offset and attention cut by the mask alone, against vectorised torch in float64."""

from __future__ import annotations

from typing import Any

import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps, usual_count

TARGET = 10.0
# Maps that the study splits at once: a layer of 8 heads of a block of 16 texts.
LAYER = 128

Split = tuple[torch.Tensor, ...]


def late_rows(scores: torch.Tensor, m: int) -> torch.Tensor:
    """The second half of the queries by offset, [maps, m, m]."""
    rows = torch.arange(m, 2 * m)[:, None]
    return scores[:, rows, rows - torch.arange(m)]


def torch_split(scores: torch.Tensor) -> Split:
    """Profile, residual, row constants, variance, key 0, log-sums; log-sum, cut and share of late rows."""
    m = scores.shape[-1] // 2
    scores = scores.double()
    late = late_rows(scores, m)
    profile = late.mean(1)
    i = torch.arange(m)
    lower = torch.ones(m, m, dtype=torch.bool).tril()
    early = scores[:, :m, :m]
    residual = (early - profile[:, (i[:, None] - i).clamp(min=0)]).masked_fill(~lower, torch.nan)
    body = lower & (i > 0)
    row = residual.masked_fill(~body, 0).sum(-1) / i
    variance = ((residual - row[..., None]) ** 2).masked_fill(~body, 0).sum(-1) / i
    lse = early.masked_fill(~lower, -torch.inf).logsumexp(-1)
    sums = late.logcumsumexp(-1)
    cut = sums - sums[..., -1:]
    means = (sums.mean(1), -cut.mean(1), 1 - cut.exp().mean(1))
    return profile, residual, row, variance, residual[..., 0] - row, lse, *means


def torch_attention(scores: torch.Tensor) -> torch.Tensor:
    """A softmax for every late row and query; no score is too large for it."""
    m = scores.shape[-1] // 2
    i = torch.arange(m)
    late = late_rows(scores.double(), m)[:, :, None].expand(-1, -1, m, -1)
    means = torch.softmax(late.masked_fill(i > i[:, None], -torch.inf), -1).mean(1)
    return means[:, i[:, None], (i[:, None] - i).clamp(min=0)].tril()


def torch_product(scores: torch.Tensor) -> torch.Tensor:
    """One matrix product of exponentials, which overflows where scores differ by more than 700."""
    m = scores.shape[-1] // 2
    i = torch.arange(m)
    late = late_rows(scores.double(), m)
    top = late.amax(-1, keepdim=True)
    means = (top - late.logcumsumexp(-1)).exp().mT @ (late - top).exp() / m
    return means[:, i[:, None], (i[:, None] - i).clamp(min=0)].tril()


def our_split(scores: torch.Tensor) -> Split:
    mask = asc.mask_only(scores, queries=[])
    return *asc.toeplitz_split(scores), mask.lse, mask.cut, mask.share


def agree(peer: str, ours: Any, theirs: Any) -> None:
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    for our_values, other in pairs:
        is_defined = our_values.isfinite() & other.isfinite()
        assert is_defined.any(), peer
        torch.testing.assert_close(our_values[is_defined], other[is_defined], rtol=1e-9, atol=1e-9)


def main() -> None:
    benchmark = Benchmark("toeplitz", __doc__ or "")
    for n in sizes(benchmark, (64, 128, 256), (64,)):
        few = usual_count(n)
        count = LAYER if n <= 128 else few
        for name, attention in all_maps(n, count, regimes=("local", "diffuse", "peaky")).items():
            if not (benchmark.wants(f"{name} split") or benchmark.wants(f"{name} attention")):
                continue
            # logarithms of attention are scores but for a constant of the row; an underflow is no score
            maps = attention[torch.arange(count) % len(attention)]  # those of a model more than once
            scores = maps.clamp_min(torch.finfo(maps.dtype).tiny).log()
            benchmark.compare(
                f"{name} split",
                len(scores),
                lambda s=scores: our_split(s),
                {"torch float64": lambda s=scores: torch_split(s)},
                agree=agree,
                target=TARGET,
                reads=scores.nbytes,
                facts={"n": n},
            )
            benchmark.compare(
                f"{name} attention",
                few,
                lambda s=scores[:few]: asc.mask_only(s).attention,
                {
                    "torch softmax": lambda s=scores[:few]: torch_attention(s),
                    "torch product": lambda s=scores[:few]: torch_product(s),
                },
                agree=agree,
                target=TARGET,
                against="torch softmax",
                reads=scores[:few].nbytes,
                facts={"n": n},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
