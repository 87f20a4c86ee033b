# SPDX-License-Identifier: MIT
"""Functions of the core for lazy attention, under their names and with their arguments and results.

Each asks for all that it needs with one `take`, so that `measure` can note what several of them share before
any pass is made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.metrics.lazy.passes import Border, Key, share_result

_SINK_TEST = Border("sink_test", 0.0)


def attention_entropy(
    attention: LazyAttention, lengths: Tensor | None, support: Any, normalized: bool
) -> tuple[Tensor, int]:
    """Return the entropy of every query, [..., h, q]."""
    attention = prepare(attention, lengths, support)
    (entropy,) = attention.take([("entropy", None)])
    non_finite = _count_non_finite(attention, entropy)
    if normalized:
        keys = attention.visibility.key_counts()
        entropy = torch.where(keys > 1, entropy / keys.double().log(), torch.nan)
    return entropy, non_finite


def sink_statistics(
    attention: LazyAttention,
    lengths: Tensor | None,
    support: Any,
    incoming: bool,
    entropy: bool,
    min_visibility: float | None,
    first_and_queries: tuple[int, int] | None,
    top: int,
    rate: tuple[float, int] | None,
) -> tuple[Any, ...]:
    """Return incoming attention, entropy, position, two shares, top mass and rate; None if not asked."""
    attention = prepare(attention, lengths, support)
    by_columns = incoming or min_visibility is not None or top > 0 or rate is not None
    keys: list[Key] = [("log_z", None)]
    keys += [("entropy", None)] if entropy else []
    keys += [("incoming", None)] if by_columns else []
    keys += [("first", first_and_queries[0])] if first_and_queries is not None else []
    results = dict(zip(keys, attention.take(keys), strict=True))
    mean = positions = shares = uniform = mass = rates = None
    if by_columns:
        sums = results["incoming", None]
        seen = attention.visibility.query_counts()
        mean = torch.where(seen > 0, sums / seen, torch.nan)
        if min_visibility is not None:
            positions = _largest_key(attention, mean, seen, min_visibility)
        if top > 0:
            received = sums.nan_to_num(0.0) if attention.lengths is not None else sums
            mass = received.topk(min(top, received.shape[-1])).values.sum(-1) / received.sum(-1)
        if rate is not None:
            epsilon, key = rate
            rates = torch.zeros(mean.shape[:-1], dtype=torch.bool, device="cpu")
            rates = mean[..., key] > epsilon if key < mean.shape[-1] else rates
    if first_and_queries is not None:
        first, queries = first_and_queries
        shares, uniform = _share(attention, results["first", first], first, queries)
    non_finite = _count_non_finite(attention, results["log_z", None])
    return (
        mean if incoming else None,
        results.get(("entropy", None)),
        positions,
        shares,
        uniform,
        mass,
        rates,
        non_finite,
    )


def column_sums(attention: LazyAttention, lengths: Tensor | None) -> Tensor:
    """Return what each key receives from all queries, [..., h, k]; 0 for padding."""
    attention = prepare(attention, lengths, "auto")
    (sums,) = attention.take([("incoming", None)])
    inside = torch.arange(sums.shape[-1], device="cpu") < attention.sizes[..., None]
    return torch.where(inside, sums, 0.0)


def far_attention(
    attention: LazyAttention, lengths: Tensor | None, support: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int]:
    """Return mass, expected, variance, largest, uniform and queries of each key's far queries."""
    require_places("sink_test", attention)
    attention = prepare(attention, lengths, support)
    parts: tuple[Tensor, ...] = share_result(attention, "far_attention", lambda: _far_attention(attention))
    *sums, of_queries = parts
    mass, expected, variance, most, uniform, queries = (values.clone() for values in sums)
    return mass, expected, variance, most, uniform, queries, _count_non_finite(attention, of_queries)


def _far_attention(attention: LazyAttention) -> tuple[Tensor, ...]:
    """Return the same, and far mass of every query in the place of a count."""
    names = ("far_mass", "far_squares", "far_largest", "far_incoming")
    sums, squares, largest, mass = attention.take([(name, _SINK_TEST) for name in names])
    visibility = attention.visibility
    pairs = visibility.far_pairs(_SINK_TEST)
    has_far = pairs.keys > 0
    mean = torch.where(has_far, sums / pairs.keys, 0.0)
    variance = torch.where(has_far, (squares / pairs.keys - mean * mean).clamp(min=0.0), 0.0)
    most = visibility.far_maxima(pairs.distances, torch.where(has_far, largest, 0.0))
    # Differences of cumulated sums leave their rounding where nothing is far.
    by_key = [
        torch.where(pairs.queries > 0, visibility.far_sums(pairs.distances, values).clamp(min=0.0), 0.0)
        for values in (mean, variance)
    ]
    inside = torch.arange(visibility.keys, device="cpu") < visibility.lengths[..., None]
    # maps without a real query have no sums
    inside = inside & visibility.real.any(-1, keepdim=True)
    mass, expected, variance, most, uniform = (
        torch.where(inside, values, torch.nan) for values in (mass, *by_key, most, pairs.uniform)
    )
    return mass, expected, variance, most, uniform, pairs.queries, sums


def sink_tokens(
    attention: LazyAttention,
    lengths: Tensor | None,
    support: Any,
    tau: float | None,
    gamma: float,
    min_visibility: float,
) -> tuple[Tensor, int]:
    """Return which keys get `tau` from the share `gamma` of the queries that see them, bool [..., h, k]."""
    attention = prepare(attention, lengths, support)
    if tau is None:
        hits = _hits_of_slabs(attention, _visible_quantile(attention, 0.9))
    else:
        hits = _hits_of_entries(attention, tau)
    non_finite = _count_non_finite(attention, attention.log_z)
    seen = attention.visibility.query_counts()
    enough = seen >= _fewest(attention, min_visibility)
    return (hits >= gamma * seen) & enough & (seen > 0), non_finite


def _hits_of_entries(attention: LazyAttention, tau: float) -> Tensor:
    """Return how many queries give each key `tau` or more, from the sparse entries, [..., h, k]."""
    counts, keys = attention.take([("counts", tau), ("keys", tau)])
    maps, size = attention.shape[:-2].numel(), attention.shape[-1]
    head = torch.repeat_interleave(torch.arange(maps, device="cpu"), counts.flatten(0, -2).sum(-1))
    hits = torch.bincount(head * size + keys, minlength=maps * size)
    return hits.reshape(*attention.shape[:-2], -1)


def _hits_of_slabs(attention: LazyAttention, tau: Tensor) -> Tensor:
    """Return the same where `tau` [..., h] may be so small that most entries reach it."""
    hits = torch.zeros((*attention.shape[:-2], attention.shape[-1]), dtype=torch.int64, device="cpu")
    for seen, weights in _visible_slabs(attention):
        hits += ((weights >= tau[..., None, None]) & seen).sum(-2)
    return hits


def _visible_slabs(attention: LazyAttention) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield which entries of a slab of rows exist, and their weights, [..., h, r, k]."""
    visibility = attention.visibility
    for begin, maps in attention.row_slabs():
        end = begin + maps.shape[-2]
        yield visibility.rows(begin, end) & visibility.real[..., begin:end, None], maps


def _visible_quantile(attention: LazyAttention, share: float) -> Tensor:
    """Return a quantile of each map's visible entries by linear interpolation, [..., h]; NaN of none or NaN.

    Weights are not negative, so that their order is that of their bits, of which each pass finds 16.
    """
    count = attention.visibility.key_counts().sum(-1)
    place = share * (count - 1).clamp(min=0).double()
    ranks = torch.stack([place.floor(), place.ceil()], -1).long()  # [..., h, 2]
    prefix = torch.zeros_like(ranks)
    maps = ranks[..., 0].numel()
    left = ranks.reshape(maps, 2).clone()
    for shift in (48, 32, 16, 0):
        bins = torch.zeros(maps, 2, 1 << 16, dtype=torch.int64, device="cpu")
        for seen, weights in _visible_slabs(attention):
            bits = weights.contiguous().view(torch.int64)
            for side in range(2):
                inside = seen & (
                    bits >> (shift + 16) == prefix[..., side, None, None] if shift < 48 else seen
                )
                head, *_ = inside.reshape(maps, -1).nonzero(as_tuple=True)
                part = (bits[inside] >> shift) & 0xFFFF
                bins[:, side] += torch.bincount(head << 16 | part, minlength=maps << 16).view(maps, -1)
        ends = bins.cumsum(-1)
        digit = torch.searchsorted(ends, left[..., None], right=True)[..., 0].clamp(max=(1 << 16) - 1)
        below = torch.where(digit > 0, ends.gather(-1, (digit - 1).clamp(min=0)[..., None])[..., 0], 0)
        left = left - below
        prefix = prefix << 16 | digit.reshape(prefix.shape)
    low, high = prefix.view(torch.float64).unbind(-1)
    value = low + (high - low) * (place - place.floor())
    return torch.where(count > 0, value, torch.nan)


def local_global_ratio(
    attention: LazyAttention, lengths: Tensor | None, support: Any, window: float, drop_first: bool
) -> tuple[Tensor, int]:
    """Return the mass at most `window` away over the mass beyond, [..., h]."""
    require_places("local_global_ratio", attention)
    attention = prepare(attention, lengths, support)
    border = Border("window", window, drop_first)
    near, beyond = attention.take([("near", border), ("beyond", border)])
    non_finite = _count_non_finite(attention, near)
    return _sum_real(attention, near) / _sum_real(attention, beyond), non_finite


def finite_matrices(attention: LazyAttention, lengths: Tensor | None) -> Tensor:
    """Return which maps hold finite entries only, bool [..., h]."""
    attention = prepare(attention, lengths, "auto")
    (log_z,) = attention.take([("log_z", None)])
    return ~(log_z.isnan() & attention.visibility.real).any(-1)


def prepare(attention: LazyAttention, lengths: Tensor | None, support: Any) -> LazyAttention:
    """Return attention with the lengths of a call, whose support must be its own."""
    if lengths is not None:
        attention = attention.with_lengths(lengths)
    is_plain = attention.window is None and attention.after is None and attention.visibility.mask is None
    plain_support = "causal" if attention.causal else "full"
    if isinstance(support, Tensor) or not (support == "auto" or (is_plain and support == plain_support)):
        kind = "a tensor" if isinstance(support, Tensor) else repr(support)
        raise ValueError(
            f"support of lazy attention is its own causal, window and mask; expected 'auto', got {kind}"
        )
    return attention


def require_places(function: str, attention: LazyAttention) -> None:
    """Raise if queries are more than keys, so that not all stand at one, without positions."""
    queries, keys = attention.shape[-2:]
    if queries > keys and attention.query_positions is None:
        raise ValueError(
            f"{function}: {queries} queries of lazy attention cannot stand at the last of {keys} keys; give "
            "it query_positions, or the map of cross attention, lazy.dense(), with cross=True"
        )


def _count_non_finite(attention: LazyAttention, of_queries: Tensor) -> int:
    """Return the number of maps with a real query that is NaN."""
    if math.isfinite(float(of_queries.sum())):  # one read of what nearly all attention gives
        return 0
    return int((of_queries.isnan() & attention.visibility.real).any(-1).sum())


def _sum_real(attention: LazyAttention, of_queries: Tensor) -> Tensor:
    return torch.where(attention.visibility.real, of_queries, 0.0).sum(-1)


def _fewest(attention: LazyAttention, min_visibility: float) -> Tensor:
    """Return ⌈min_visibility·n⌉ for the queries of each map, [..., h, 1]."""
    queries = attention.visibility.real.sum(-1, keepdim=True).double()
    return (queries * min_visibility - 1e-9).ceil()


def _largest_key(attention: LazyAttention, mean: Tensor, seen: Tensor, min_visibility: float) -> Tensor:
    competes = (seen >= _fewest(attention, min_visibility)) & (seen > 0)
    ranked = torch.where(competes, mean, -math.inf)
    is_defined = competes.any(-1) & ~torch.where(competes, mean, 0.0).isnan().any(-1)
    return torch.where(is_defined, ranked.argmax(-1), -1)


def _share(attention: LazyAttention, mass: Tensor, first: int, queries: int) -> tuple[Tensor, Tensor]:
    """Return the mean mass on the first keys over the last queries, and that of equal weights."""
    counted, number, uniform = attention.visibility.last_queries(first, queries)
    share = torch.where(counted, mass, 0.0).sum(-1) / number
    return share, torch.where(share.isnan(), torch.nan, uniform)
