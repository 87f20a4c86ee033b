# SPDX-License-Identifier: MIT
"""Attention that keys receive, and the paper's rule for sinks, in torch operations.

The definitions are those of `attnscope.incoming_attention`, `sink_share`, `top_mass` and `sink_tokens`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnscope.arguments.maps import Extent
from attnscope.devices.compensated_sums import sum_along
from attnscope.devices.slab import Slab
from attnscope.devices.slabs import per_map


def _required_queries(slab: Slab, min_visibility: float) -> Tensor:
    """Return ⌈min_visibility·queries⌉ of each map, [m, 1]; rounding must not lift it over a whole number."""
    return torch.ceil(min_visibility * slab.queries.to(slab.dtype) - 1e-9)[:, None]


def _incoming(slab: Slab, mass: Tensor) -> Tensor:
    """Return the mean attention that each key receives from the queries that see it, NaN where none does."""
    queries = slab.visible_queries
    return torch.where(queries > 0, mass / queries, math.nan)


def _strongest_key(slab: Slab, incoming: Tensor, min_visibility: float) -> Tensor:
    """Return the first key of largest incoming attention among those that enough queries see, or −1."""
    eligible = slab.visible_queries >= _required_queries(slab, min_visibility).clamp(min=1)
    eligible &= slab.inside
    values = torch.where(eligible, incoming, -math.inf)
    first = torch.where(values == values.amax(-1, keepdim=True), slab.positions, slab.n).amin(-1)
    return torch.where(eligible.any(-1) & slab.finite, first, -1)


def _share(slab: Slab, first: int, queries: int) -> tuple[Tensor, Tensor]:
    """Return the mean mass on the first keys over the last queries, and its value for uniform attention."""
    counted = slab.rows_inside & (slab.rows >= slab.queries[:, None] - queries) & (slab.visible_keys > 0)
    number = counted.sum(-1)
    entries, seen = slab.first_keys(first)
    mass = sum_along(entries)
    uniform = seen.sum(-1) / slab.visible_keys.to(slab.dtype)
    share, uniform = (sum_along(torch.where(counted, part, 0.0)) / number for part in (mass, uniform))
    return slab.undefined_where_not_finite(share), slab.undefined_where_not_finite(uniform)


def _top_mass(slab: Slab, mass: Tensor, k: int) -> Tensor:
    total = sum_along(mass)
    top = sum_along(mass.topk(min(k, slab.n)).values)
    return slab.undefined_where_not_finite(torch.where(total == 0, math.nan, top / total))


def _is_above(slab: Slab, incoming: Tensor, epsilon: float, key: int) -> Tensor:
    """Return whether a key receives more than epsilon; False for one that a map does not have."""
    if key >= slab.n:
        return torch.zeros_like(slab.finite)
    return (incoming[:, key] > epsilon) & slab.inside[:, key] & slab.finite


def sink_statistics(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    incoming: bool,
    entropy: bool,
    min_visibility: float | None,
    first_and_queries: tuple[int, int] | None,
    top: int,
    rate: tuple[float, int] | None,
) -> tuple[Any, ...]:
    """Return incoming attention, entropy, strongest key, share, uniform share, top mass, rate of every map.

    Each is None where it is not asked for; the last number counts the maps that are not finite. A rate says
    whether a key receives more than epsilon.
    """

    def compute(slab: Slab) -> list[Tensor]:
        results = []
        mass = slab.key_mass
        received = _incoming(slab, mass)
        if incoming:
            results.append(slab.undefined_outside(received))
        if entropy:
            results.append(slab.undefined_outside_rows(slab.row_entropy))
        if min_visibility is not None:
            results.append(_strongest_key(slab, received, min_visibility))
        if first_and_queries is not None:
            results += _share(slab, *first_and_queries)
        if top > 0:
            results.append(_top_mass(slab, mass, top))
        if rate is not None:
            results.append(_is_above(slab, received, *rate))
        return [*results, slab.finite]

    *results, non_finite = per_map(compute, attention, lengths, support, needs_entropy=entropy)
    share = first_and_queries is not None
    is_asked_for = (incoming, entropy, min_visibility is not None, share, share, top > 0, rate is not None)
    answers = iter(results)
    return (*(next(answers) if is_asked else None for is_asked in is_asked_for), non_finite)


def sink_tokens(
    attention: Tensor,
    lengths: Tensor | Extent | None,
    support: str | Tensor,
    tau: float | None,
    gamma: float,
    min_visibility: float,
) -> tuple[Tensor, int]:
    """Return the keys that are sinks by the frequency rule, bool [..., n]."""

    def compute(slab: Slab) -> tuple[Tensor, Tensor]:
        level = _visible_quantile(slab, 0.9) if tau is None else tau
        limit = torch.as_tensor(level, dtype=slab.dtype, device=slab.maps.device).reshape(-1, 1, 1)
        counts = ((slab.wide >= limit) & slab.seen).sum(-2)
        queries = slab.visible_queries
        is_sink = (queries > 0) & (queries >= _required_queries(slab, min_visibility))
        is_sink &= counts / queries.to(slab.dtype) >= gamma
        return is_sink & slab.inside & slab.finite[:, None], slab.finite

    result: tuple[Tensor, int] = per_map(compute, attention, lengths, support)
    return result


def _visible_quantile(slab: Slab, share: float) -> Tensor:
    """Return a quantile of each map's visible entries, [m], by linear interpolation; NaN without one."""
    count = slab.seen.flatten(1).sum(-1)
    ordered = torch.where(slab.seen, slab.wide, math.inf).flatten(1).sort(-1).values
    position = share * (count - 1).clamp(min=0).to(slab.dtype)
    rank = position.floor()
    below = rank.long()[:, None]
    at = ordered.gather(1, below).squeeze(1)
    after = ordered.gather(1, (below + 1).clamp(max=ordered.shape[1] - 1)).squeeze(1)
    between = torch.where(position == rank, at, at + (after - at) * (position - rank))
    return torch.where(count > 0, between, math.nan)
