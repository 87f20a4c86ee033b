# SPDX-License-Identifier: MIT
"""Attention to patterns of keys, in torch operations; the definition is `attnscope.pattern_share`'s."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnscope.devices.compensated_sums import sum_all, sum_along
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


class PatternSums(NamedTuple):
    """Sums over the maps of a slab for one pattern, each [m], and its keys.

    Attributes:
        targets: True for the visible keys of each query's pattern, [m, n, n].
        ideal: uniform attention to them, 0 elsewhere, [m, n, n].
        queries: number of queries with such a key.
        divisor: queries, or all attention.
        share: attention to the keys over the divisor.
        uniform: the same of uniform attention.
        difference: ‖A − P‖².
        norms: ‖A‖² + ‖P‖².
    """

    targets: Tensor
    ideal: Tensor
    queries: Tensor
    divisor: Tensor
    share: Tensor
    uniform: Tensor
    difference: Tensor
    norms: Tensor


def pattern_keys(slab: Slab, pattern: str, tokens: Tensor | None, marked: Tensor | None) -> Tensor:
    """Return True for the visible keys of each query's pattern, [m, n, n].

    Args:
        slab: the maps.
        pattern: a name of the core's.
        tokens: ids [m, n] for "duplicate" and "induction".
        marked: a mask [m, n, n] for "marked".
    """
    query, key = slab.positions[:, None], slab.positions
    if pattern == "first":
        keys = (key == 0).expand(slab.n, slab.n)
    elif pattern in ("self", "previous", "next"):
        keys = key == query + {"self": 0, "previous": -1, "next": 1}[pattern]
    elif pattern == "marked":
        assert marked is not None
        keys = marked
    else:
        assert tokens is not None
        keys = (tokens[:, :, None] == tokens[:, None, :]) & (query != key)
        if pattern == "induction":
            # the key behind a copy, but for the query itself
            keys = torch.nn.functional.pad(keys[..., :-1], (1, 0)) & (query != key)
    return keys & slab.seen


def sum_pattern(slab: Slab, targets: Tensor, over_all: bool) -> PatternSums:
    """Return the sums of one pattern over the maps of a slab."""
    attention = slab.attention
    number = targets.sum(-1)
    queries = (number > 0).sum(-1)
    ideal = targets.to(slab.dtype) / number.clamp(min=1)[..., None].to(slab.dtype)
    matched = sum_all(torch.where(targets, attention, 0.0))
    visible = slab.visible_keys
    uniform = sum_along(number / visible.clamp(min=1).to(slab.dtype))
    rows = (visible > 0).sum(-1)
    divisor = sum_all(attention) if over_all else queries.to(slab.dtype)
    return PatternSums(
        targets,
        ideal,
        queries,
        divisor,
        torch.where(divisor != 0, matched / divisor, math.nan),
        uniform / (rows if over_all else queries),
        sum_all((attention - ideal).square()),
        sum_all(attention.square()) + sum_all(ideal.square()),
    )


def pattern_share(
    attention: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    patterns: Sequence[str],
    tokens: Tensor | None,
    marked: Tensor | None,
    all: bool,
) -> tuple[tuple[Tensor, ...], int]:
    """Return the five fields of `attnscope.PatternShare`, [..., P], and how many maps are not finite."""
    leading, n = attention.shape[:-2], attention.shape[-1]
    ids = None
    if tokens is not None:
        ids = tokens.reshape(-1, n).expand(math.prod(leading), n).reshape(*leading, n)
    marks = None if marked is None else marked.expand(attention.shape)

    def compute(slab: Slab, ids: Tensor | None, marks: Tensor | None) -> list[Tensor]:
        columns = []
        for pattern in patterns:
            sums = sum_pattern(slab, pattern_keys(slab, pattern, ids, marks), all)
            defined = slab.finite & (sums.queries > 0)
            numbers = [
                sums.share,
                sums.uniform,
                sums.share / sums.uniform,
                torch.where(slab.finite, sums.queries, -1),
                (sums.difference / sums.norms).sqrt(),
            ]
            columns.append(
                [
                    torch.where(defined, number, math.nan) if number.is_floating_point() else number
                    for number in numbers
                ]
            )
        return [*(torch.stack(fields, -1) for fields in zip(*columns, strict=True)), slab.finite]

    *fields, non_finite = per_map(compute, attention, lengths, support, (ids, marks))
    return tuple(fields), non_finite
