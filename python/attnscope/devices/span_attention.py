# SPDX-License-Identifier: MIT
"""Attention of a span of tokens, in torch operations; the definition is `attnscope.span_attention`'s."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


def span_attention(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    spans: Sequence[int],
    special: Tensor | None,
) -> tuple[tuple[Tensor, ...], int]:
    """Return the eight fields of `attnscope.SpanAttention` of every map."""
    leading = attention.shape[:-2]
    ends = torch.tensor(spans, dtype=torch.int64, device="cpu").reshape(-1, 2)
    ends = ends.expand(math.prod(leading), 2).reshape(*leading, 2)
    marks = None if special is None else special.expand(*leading, attention.shape[-1])

    def compute(slab: Slab, borders: Tensor, marked: Tensor | None) -> list[Tensor]:
        start, stop = borders[:, :1], borders[:, 1:]
        in_span = (slab.positions >= start) & (slab.positions < stop)
        from_span = slab.at_queries(in_span) & slab.rows_inside
        size = from_span.sum(-1).to(slab.dtype)
        size = torch.where(size > 0, size, math.nan)
        marked = torch.zeros_like(in_span) if marked is None else marked

        def mean_over_span(rows: Tensor) -> Tensor:
            return sum_along(torch.where(from_span, rows, 0.0)) / size

        def to_keys(keys: Tensor) -> Tensor:
            return sum_along(torch.where(keys[:, None, :], slab.attention, 0.0))

        inward = to_keys(in_span)
        seen_of_span = (slab.seen & in_span[:, None, :]).sum(-1)
        uniform = seen_of_span / slab.visible_keys.clamp(min=1).to(slab.dtype)
        share, uniform_share = mean_over_span(inward), mean_over_span(uniform)
        outside = slab.inside & ~in_span
        queries = slab.rows_inside & ~from_span & (seen_of_span > 0)
        number = queries.sum(-1).to(slab.dtype)
        number = torch.where(number > 0, number, math.nan)
        fields = [
            share,
            uniform_share,
            share / uniform_share,
            mean_over_span(_diagonal(slab)),
            mean_over_span(to_keys(outside & marked)),
            mean_over_span(to_keys(outside & ~marked)),
            sum_along(torch.where(queries, inward, 0.0)) / number,
            sum_along(torch.where(queries, uniform, 0.0)) / number,
        ]
        answered = slab.finite & (borders[:, 0] >= 0)
        return [*(torch.where(answered, field, math.nan) for field in fields), slab.finite]

    *fields, non_finite = per_map(compute, attention, lengths, support, (ends, marks))
    return tuple(fields), non_finite


def _diagonal(slab: Slab) -> Tensor:
    """Return the attention of each query to the key at which it stands, [m, q]."""
    if slab.shift is None:
        return slab.attention.diagonal(dim1=-2, dim2=-1)
    places = slab.places.expand(slab.maps.shape[:2]).clamp(0, slab.n - 1)
    return slab.attention.gather(-1, places[..., None]).squeeze(-1)
