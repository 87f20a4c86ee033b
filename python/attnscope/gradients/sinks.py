# SPDX-License-Identifier: MIT
"""Derivatives of the attention that keys receive, of the share of the first keys, and of the top mass.

All three are sums of entries over fixed numbers, but for the top mass, a ratio of two sums. The keys of the
top mass are those that receive most; where two receive the same, those that `torch.topk` takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnscope.gradients import operators


def _incoming(
    maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    options = (seen, True, False, None, None, 0, None)
    results = operators.evaluate("sink_statistics", maps, lengths, *options)
    return results[0], results[-1]


def _incoming_backward(
    gradient: Tensor, maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    queries = slab.visible_queries
    weight = operators.incoming_gradient(gradient, slab, slab.n) / queries.clamp(min=1)
    result = torch.where(slab.seen, weight[:, None, :], 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_INCOMING = operators.operator_pair(
    "incoming_attention",
    _incoming,
    lambda maps, *_: (operators.empty(*maps.shape[:-2], maps.shape[-1]), operators.count()),
    _incoming_backward,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def _share(
    maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None, first: int, queries: int
) -> tuple[Tensor, Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    options = (seen, False, False, None, (first, queries), 0, None)
    results = operators.evaluate("sink_statistics", maps, lengths, *options)
    return results[3], results[4], results[-1]


def _share_backward(
    gradient: Tensor,
    maps: Tensor,
    lengths: Tensor | None,
    support: str,
    visible: Tensor | None,
    first: int,
    queries: int,
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    counted = slab.rows_inside & (slab.rows >= slab.queries[:, None] - queries) & (slab.visible_keys > 0)
    weight = operators.incoming_gradient(gradient, slab) / counted.sum(-1).clamp(min=1)
    is_sink = slab.seen & counted[:, :, None] & (slab.positions < first)
    result = torch.where(is_sink, weight[:, None, None], 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_SHARE = operators.operator_pair(
    "sink_share",
    _share,
    lambda maps, *_: (
        operators.empty(*maps.shape[:-2]),
        operators.empty(*maps.shape[:-2]),
        operators.count(),
    ),
    _share_backward,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def _top_mass(
    maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None, top: int
) -> tuple[Tensor, Tensor]:
    seen = operators.joined_support(support, visible)
    results = operators.evaluate("sink_statistics", maps, lengths, seen, False, False, None, None, top, None)
    return results[5], results[-1]


def _top_mass_backward(
    gradient: Tensor, maps: Tensor, lengths: Tensor | None, support: str, visible: Tensor | None, top: int
) -> Tensor:
    slab = operators.flat_slab(maps, lengths, support, visible)
    mass = slab.key_mass
    total = mass.sum(-1, keepdim=True)
    strongest = torch.where(slab.inside, mass, -torch.inf).topk(min(top, slab.n)).indices
    is_top = torch.zeros_like(slab.inside).scatter(-1, strongest, True) & slab.inside
    share = torch.where(is_top, mass, 0.0).sum(-1, keepdim=True) / total
    weight = operators.incoming_gradient(gradient, slab)[:, None]
    by_key = torch.where(total != 0, weight * (is_top.to(slab.dtype) - share) / total, 0.0)
    result = torch.where(slab.seen, by_key[:, None, :], 0.0)
    return result.reshape(maps.shape).to(maps.dtype)


_TOP_MASS = operators.operator_pair(
    "top_mass",
    _top_mass,
    lambda maps, *_: (operators.empty(*maps.shape[:-2]), operators.count()),
    _top_mass_backward,
    lambda gradient, maps, *_: torch.empty_like(maps),
)


def sink_statistics(
    maps: Tensor,
    lengths: Tensor | None,
    support: str | Tensor,
    incoming: bool,
    entropy: bool,
    min_visibility: float | None,
    first_and_queries: tuple[int, int] | None,
    top: int,
    rate: tuple[float, int] | None,
) -> tuple[Tensor | None, None, None, Tensor | None, Tensor | None, Tensor | None, None, Tensor]:
    """Return what the core's function of that name returns, for one of the three measures at a time."""
    seen = operators.split_support(support)
    received = share = uniform = mass = None
    if incoming:
        received, non_finite = _INCOMING(maps, lengths, *seen)
    elif first_and_queries is not None:
        share, uniform, non_finite = _SHARE(maps, lengths, *seen, *first_and_queries)
    else:
        mass, non_finite = _TOP_MASS(maps, lengths, *seen, top)
    return received, None, None, share, uniform, mass, None, non_finite
